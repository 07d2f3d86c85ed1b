// Vercel's AI SDK: `node vercel_program.mjs chat|responses whole|stream|refused|cancelled`.

import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";
import { apiKey, baseURL, cancelled, compute, grade, instructions, mode, protocol, refused, stream, task } from "./arithmetic.mjs";

const openai = createOpenAI({ baseURL, apiKey });
const calculate = tool({
  description: "Work out one operation.",
  inputSchema: z.object({ a: z.number(), sign: z.enum(["+", "-", "*", "/"]), b: z.number() }),
  execute: async (operation) => compute(operation),
});
const options = {
  model: protocol === "chat" ? openai.chat("policy") : openai.responses("policy"),
  system: instructions,
  prompt: task.question,
  tools: { calculate },
  stopWhen: isStepCount(12),
};

if (mode === "cancelled") await cancelled((abortSignal) => generateText({ ...options, abortSignal }));
if (mode === "refused") {
  const output = Output.object({ schema: z.object({ number: z.number() }) });
  await refused(() => generateText({ ...options, output }), APICallError, "replies are not constrained");
}
const { text } = stream ? streamText(options) : await generateText(options);
await grade(await text);
