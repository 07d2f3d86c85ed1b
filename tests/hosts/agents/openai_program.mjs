// OpenAI's client for Node: `node openai_program.mjs chat|responses whole|stream|refused|cancelled`.

import OpenAI from "openai";
import { apiKey, baseURL, cancelled, compute, grade, instructions, mode, protocol, refused, stream, task } from "./arithmetic.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const number = { type: "number" };
const parameters = {
  type: "object",
  properties: { a: number, sign: { type: "string" }, b: number },
  required: ["a", "sign", "b"],
};
const calculate = { name: "calculate", description: "Work out one operation.", parameters };
const messages = [
  { role: "developer", content: instructions },
  { role: "user", content: task.question },
];

async function chat(options) {
  const tools = [{ type: "function", function: { ...calculate, parse: JSON.parse, function: compute } }];
  return client.chat.completions.runTools({ model: "policy", messages, tools, stream }, options).finalContent();
}

async function responses(options) {
  const input = [...messages];
  const tools = [{ type: "function", strict: false, ...calculate }];
  for (;;) {
    const request = { model: "policy", input, tools };
    const response = stream
      ? await client.responses.stream(request, options).finalResponse()
      : await client.responses.create(request, options);
    input.push(...response.output);
    const calls = response.output.filter((item) => item.type === "function_call");
    if (calls.length === 0) return response.output_text;
    for (const { call_id, arguments: written } of calls) {
      input.push({ type: "function_call_output", call_id, output: String(compute(JSON.parse(written))) });
    }
  }
}

const run = protocol === "chat" ? chat : responses;
if (mode === "cancelled") await cancelled((signal) => run({ signal }));
if (mode === "refused") {
  const format = { type: "json_object" };
  const request =
    protocol === "chat"
      ? () => client.chat.completions.create({ model: "policy", messages, response_format: format })
      : () => client.responses.create({ model: "policy", input: messages, text: { format } });
  await refused(request, OpenAI.BadRequestError, "replies are not constrained");
}
await grade(await run());
