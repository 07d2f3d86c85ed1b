// The same agent for Node, without a package: `command="node agent.mjs" files=examples/agents`.
//
//     python -m trainers.ppo env.id=textenv/agent env.backend=thread 'env.kwargs.command=node agent.mjs' \
//         env.kwargs.files=examples/agents env.kwargs.expert=textenvs.envs.agent.example:expert

import { readFileSync } from "node:fs";

const task = JSON.parse(readFileSync(process.env.TEXTENVS_TASK_FILE, "utf8"));
const { OPENAI_BASE_URL: url, OPENAI_API_KEY: key } = process.env;
const operators = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };
const number = { type: "number" };
const parameters = { type: "object", properties: { a: number, sign: { type: "string" }, b: number } };
const tools = [
  { type: "function", function: { name: "calculate", description: "Work out one operation.", parameters } },
];

async function post(path, body) {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const response = await fetch(`${url}/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

function calculate(written) {
  try {
    const { a, sign, b } = JSON.parse(written);
    return String(operators[sign](a, b));
  } catch (error) {
    return `error: ${error.message}`;
  }
}

const messages = [
  { role: "system", content: 'Use the tool for every operation. Then end with "#### " and the number.' },
  { role: "user", content: task.question },
];
let reply;
for (let turn = 0; turn < 8; turn++) {
  const completion = await post("chat/completions", { model: "policy", messages, tools });
  reply = completion.choices[0].message;
  messages.push(reply);
  if (!reply.tool_calls) break;
  for (const call of reply.tool_calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: calculate(call.function.arguments) });
  }
}
const answer = /#### (\S+)/.exec(reply.content ?? "");
await post("rewards", { reward: answer && answer[1] === task.ground_truth ? 1 : 0 });
