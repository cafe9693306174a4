// worker.mjs
import { exec } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";

const { LANEWAY_URL: url = "http://127.0.0.1:8420", LANEWAY_TOKEN: secret } = process.env;
delete process.env.LANEWAY_TOKEN; // commands need not see it

async function post(path, body) {
  const headers = { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" };
  for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
    const asked = fetch(`${url}/v1/tasks/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
    const answer = await asked.catch(() => null);
    if (answer?.ok) return answer.json();
    if (answer && answer.status < 500 && answer.status !== 429) throw new Error(await answer.text());
    await sleep(pause * (0.5 + Math.random() / 2)); // nobody is there, or they are busy: ask again
  }
}

const run = (command, signal) =>
  new Promise((done) =>
    exec(command, { signal, maxBuffer: 1e7 }, (error, stdout, stderr) =>
      done({ output: stdout + stderr, exit_code: Number.isInteger(error?.code) ? error.code : error ? 1 : 0 })));

async function work({ task, token, lease_ms }) {
  await post(`${task.task_id}/start`, { token }); // refused: somebody else has it, so do not begin
  const stop = new AbortController();
  const beat = setInterval(async () => {
    const { wanted } = await post(`${task.task_id}/heartbeat`, { token }).catch(() => ({ wanted: false }));
    if (!wanted) stop.abort(); // the run was cancelled, or its time is over
  }, lease_ms / 3);
  const result = await run(task.payload.command, stop.signal);
  clearInterval(beat);
  if (!stop.signal.aborted) await post(`${task.task_id}/complete`, { token, result });
}

for (console.log(`node-1 takes tasks of ${url}`); ; ) {
  try {
    const { leases } = await post("claim", { worker: "node-1", commands: ["bash"], wait_ms: 20000 });
    await Promise.all(leases.map(work));
  } catch (error) {
    console.error(String(error)); // a token that does not count, a task that is somebody else's
    await sleep(1000);
  }
}
