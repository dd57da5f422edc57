// What every view needs: the run and its classes.

import * as api from "./api.js";
import { setClusters, setRun, state } from "./state.js";

export async function loadRun() {
  const unlessMissing = (error) => (error.code === "unavailable" ? null : Promise.reject(error));
  const [run, clusters] = await Promise.all([api.run(), api.clusters().catch(unlessMissing)]);
  setRun(run);
  if (clusters) setClusters(clusters);
}

/** Load what was changed elsewhere: in another tab, by the command line, by a job. */
export async function lookAgain() {
  if (!state.run) {
    await api.run(); // raises an error as long as the server does not answer
    location.reload();
    return;
  }
  const clusters = await api.clusters();
  if (clusters.state === state.clusters?.state) return;
  setRun(await api.run());
  setClusters(clusters);
}
