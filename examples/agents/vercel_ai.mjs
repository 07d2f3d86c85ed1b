// The same agent for Node with Vercel's AI SDK (`npm ci --prefix examples/agents`).
//
//     python -m trainers.ppo env.id=textenv/agent env.backend=thread \
//         "env.kwargs.command=node $PWD/examples/agents/vercel_ai.mjs" \
//         env.kwargs.expert=textenvs.envs.agent.example:expert env.kwargs.careless=textenvs.envs.agent.example:careless

import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, tool } from "ai";
import { z } from "zod";

const task = JSON.parse(readFileSync(process.env.TEXTENVS_TASK_FILE, "utf8"));
const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const operators = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };

const calculate = tool({
  description: "Work out one operation.",
  inputSchema: z.object({ a: z.number(), sign: z.enum(["+", "-", "*", "/"]), b: z.number() }),
  execute: async ({ a, sign, b }) => operators[sign](a, b),
});

const { text } = await generateText({
  model: createOpenAI({ baseURL, apiKey })("policy"),
  system: 'Use the tool for every operation. Then end with "#### " and the number.',
  prompt: task.question,
  tools: { calculate },
  stopWhen: isStepCount(12),
});

const answer = /#### (\S+)/.exec(text);
await fetch(`${baseURL}/rewards`, {
  method: "POST",
  headers: { Authorization: `Bearer ${apiKey}`, "Content-Type": "application/json" },
  body: JSON.stringify({ reward: answer && answer[1] === task.ground_truth ? 1 : 0 }),
});
