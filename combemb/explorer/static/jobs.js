// Jobs: what takes long runs in another process, and is asked for every second.

import * as api from "./api.js";
import { make, show } from "./dom.js";
import { complain } from "./saved.js";
import { percent } from "./words.js";

const EVERY = 1000; // milliseconds
const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

/** Call `tell(job)` until the job has ended; return it. A server that does not answer is asked again. */
export async function followJob(id, tell) {
  for (;;) {
    try {
      const job = await api.job(id);
      tell(job);
      if (job.status !== "running") return job;
    } catch (error) {
      if (error.code !== "gone") throw error;
    }
    await pause(EVERY);
  }
}

/** Return a box that shows how far a job is. */
export function jobBox(job) {
  const bar = make("progress", { max: 1, "aria-label": `Progress: ${job.title}` });
  const step = make("p", { class: "step" }),
    text = make("p", { class: "faint text" }),
    log = make("pre", { tabindex: "0", role: "log", "aria-label": "Last lines" });
  const stop = make("button", { onclick: () => api.stopJob(job.id).catch(complain) }, "Stop");
  const status = make("p", { role: "status" });
  const box = make(
    "div",
    { class: "job" },
    make("h4", {}, job.title),
    status,
    bar,
    step,
    text,
    log,
    make("div", { class: "actions" }, stop),
  );
  box.update = (now) => {
    const isRunning = now.status === "running";
    bar.hidden = !isRunning;
    if (now.progress === null) bar.removeAttribute("value");
    else bar.value = now.progress;
    stop.hidden = !isRunning;
    step.hidden = !isRunning || !now.step;
    text.hidden = !isRunning;
    if (now.step) show(step, `Step ${now.step.number} of ${now.step.of}: ${now.step.name}`);
    const share = now.progress === null ? null : percent(now.progress);
    show(text, [now.text, share, duration(now.seconds)].filter(Boolean).join(" · "));
    log.textContent = now.lines.slice(-8).join("\n");
    log.hidden = now.lines.length === 0 || now.status === "done";
    const said = {
      running: "",
      done: `Done in ${duration(now.seconds)}.`,
      failed: `Failed: ${now.error ?? "it ended with an error"}`,
      stopped: "Stopped.",
    }[now.status];
    if (status.textContent !== said) status.textContent = said;
    box.className = `job ${now.status}`;
  };
  box.update(job);
  return box;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}
