/** What can be done about lanes and jobs from the page. */
import { ask } from "../core/api.js";
import { duration } from "../core/format.js";
import { prompt } from "../ui/dialogs.js";
import { tell, toast } from "../ui/parts.js";

// Lanes are named in full: with a workspace, a bare name would mean the lane of that workspace.
const ALL = { reads: "" };

function path(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

async function change(track, body) {
  return ask(`/lanes/${path(track.name)}`, { ...ALL, method: "PATCH", body });
}

function called(track) {
  return track.role === "template" ? `${track.name} of every session` : track.name;
}

/** Ask why, and start nothing more in a lane. */
export async function pause(track) {
  const reason = await prompt({
    title: `Pause ${called(track)}`,
    label: "Reason (may be empty)",
    hint: "What runs goes on; nothing new starts until somebody resumes it.",
    yes: "Pause",
  });
  if (reason === null) return;
  await change(track, { paused: true, reason });
  toast(`${called(track)} is paused.`, { action: { text: "Resume", run: () => resume(track).catch(tell) } });
}

/** Start again what waits. */
export async function resume(track) {
  await change(track, { paused: false });
  toast(`${called(track)} goes on.`);
}

/** Pause a lane that runs, resume one that is paused. */
export function turn(track) {
  return track.paused ? resume(track) : pause(track);
}

/** Give a lane another width. */
export async function resize(track, concurrency) {
  await change(track, { concurrency });
  toast(`${called(track)} has ${concurrency} ${concurrency === 1 ? "slot" : "slots"} now.`);
}

/** Start nothing in a lane for a while. */
export async function close(track, forMs, reason) {
  await ask(`/limits/${path(track.name)}/close`, { ...ALL, body: { for_ms: forMs, reason } });
  toast(`${track.name} is closed for ${duration(forMs)}.`);
}

/** Open a closed lane before its time. */
export async function open(track) {
  await ask(`/limits/${path(track.name)}/open`, { ...ALL, method: "POST" });
  toast(`${track.name} is open again.`);
}

/** Ask why, and end a job. Whether it was done. */
export async function cancel(job) {
  const what = {
    tool: "Only this call ends; the model is told so and the run goes on.",
    model: "The run that it works for ends with it.",
    turn: job.run ? "The run ends; what waits in its session stays." : "The messages that it would have been about are withdrawn.",
  }[job.kind] ?? "";
  const reason = await prompt({ title: "Cancel this job", label: "Reason (may be empty)", text: what, yes: "Cancel the job" });
  if (reason === null) return false;
  const end = await ask(`/jobs/${encodeURIComponent(job.id)}/cancel`, { ...ALL, body: { reason } });
  toast(`${end.done[0].toUpperCase()}${end.done.slice(1)}.`);
  return true;
}
