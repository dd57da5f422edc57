// The HTTP API of docs/decisions/explorer.md, one function for each address that the page needs.

import { emit } from "./state.js";

/** What the server refused, or that it did not answer (code "gone"). */
export class ApiError extends Error {
  constructor(status, { code, message, do: todo }) {
    super(message);
    Object.assign(this, { status, code, todo });
  }
}

const GONE = {
  code: "gone",
  message: "The server does not answer.",
  do: "Start it again with combemb serve. What was confirmed as saved is on the disk.",
};

async function answer(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { Accept: "application/json", ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    emit("gone", true);
    throw new ApiError(0, GONE);
  }
  emit("gone", false);
  if (response.ok) return response;
  if (response.status === 401) location.assign("/"); // shows the form that asks for the token
  const body = await response.json().catch(() => ({}));
  throw new ApiError(
    response.status,
    body.error ?? { code: "internal", message: `The server answered ${response.status}.`, do: null },
  );
}

const get = async (path, options) => (await answer(path, options)).json();

const send = async (method, path, body) =>
  (await answer(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(given).toString();
}

export const run = () => get("/api/run");
export const runs = () => get("/api/runs");
export const openRun = (name) => send("POST", "/api/runs/current", { name });
export const curves = () => get("/api/curves");
export const clusters = () => get("/api/clusters");
export const items = (asked, options) => get(`/api/items?${query(asked)}`, options);
export const change = (what) => send("POST", "/api/changes", what);
export const search = (asked) => send("POST", "/api/search", asked);
export const jobs = () => get("/api/jobs");
export const job = (id) => get(`/api/jobs/${id}`);
export const startJob = (asked) => send("POST", "/api/jobs", asked);
export const stopJob = (id) => send("DELETE", `/api/jobs/${id}`, {});
export const writeFolders = (copy) => send("POST", "/api/export/folders", { copy });
export const exportOf = (file) => `/api/export/${file}`;

export async function searchImage(file, asked) {
  const headers = { "Content-Type": file.type.startsWith("image/") ? file.type : "application/octet-stream" };
  return (await answer(`/api/search/image?${query(asked)}`, { method: "POST", headers, body: file })).json();
}

/** Places of all items: {x, y}, two Float32Arrays with numbers from -1 to 1. */
export async function map() {
  const response = await answer("/api/map", { headers: { Accept: "application/octet-stream" } });
  const numbers = new Float32Array(await response.arrayBuffer());
  const n = numbers.length / 2;
  return { x: numbers.subarray(0, n), y: numbers.subarray(n), discovery: response.headers.get("X-Combemb-Discovery") };
}

/** The class of every item by its number, with flags (1 labelled, 2 named by a person) and confidences (0 to 255). */
export async function assignment() {
  const response = await answer("/api/assignment", { headers: { Accept: "application/octet-stream" } });
  const bytes = await response.arrayBuffer();
  const n = bytes.byteLength / 6;
  return {
    numbers: new Int32Array(bytes, 0, n),
    flags: new Uint8Array(bytes, 4 * n, n),
    confidences: new Uint8Array(bytes, 5 * n, n),
    state: response.headers.get("X-Combemb-State"),
  };
}

/** The address of a small picture; the version lets the browser keep it. */
export const thumbnail = (row, side, state) => `/api/items/${row}/thumbnail?side=${side}&v=${discoveryOf(state)}`;
export const picture = (row, state) => `/api/items/${row}/picture?v=${discoveryOf(state)}`;

const discoveryOf = (state) => (state ?? "").split("-")[0];
