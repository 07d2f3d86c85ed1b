// The task of the agents here, how the reward is posted, and a call that is given up.

import { existsSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const task = JSON.parse(readFileSync(process.env.TEXTENVS_TASK_FILE, "utf8"));
export const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
export const [protocol, mode] = process.argv.slice(2);
export const stream = mode === "stream";
export const instructions = 'Use the tool for every operation. Then end with "#### " and the number.';

const operators = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };
export const compute = ({ a, sign, b }) => operators[sign](a, b);

export async function grade(text) {
  const answer = /#### (\S+)/.exec(text);
  await fetch(`${baseURL}/rewards`, {
    method: "POST",
    headers: { Authorization: `Bearer ${apiKey}`, "Content-Type": "application/json" },
    body: JSON.stringify({ reward: answer && answer[1] === task.ground_truth ? 1 : 0 }),
  });
}

// The test makes the two files: when the call has arrived, and when the gateway has noticed that its client is gone.
export async function cancelled(call) {
  const controller = new AbortController();
  const result = call(controller.signal).then(
    () => new Error("it had a reply"),
    (error) => error,
  );
  while (!existsSync("arrived")) await sleep(5);
  controller.abort();
  const error = await result;
  if (!/abort/i.test(`${error.name} ${error.message}`)) throw error;
  while (!existsSync("noticed")) await sleep(5);
}

export async function refused(call, type, words) {
  const error = await call().then(
    () => new Error("it was accepted"),
    (error) => error,
  );
  if (!(error instanceof type) || !error.message.includes(words)) throw error;
}
