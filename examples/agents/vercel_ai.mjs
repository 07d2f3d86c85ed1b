// The same agent for Node with Vercel's AI SDK (`npm ci --prefix examples/agents`): a process for each episode, or, with
// `env.kwargs.serve=8`, one for up to eight at a time. Its start takes 0.4 s of CPU time, an episode 10 ms.
//
//     python -m trainers.ppo env.id=textenv/agent env.backend=thread env.kwargs.serve=8 \
//         "env.kwargs.command=node $PWD/examples/agents/vercel_ai.mjs" \
//         env.kwargs.expert=textenvs.envs.agent.example:expert env.kwargs.careless=textenvs.envs.agent.example:careless \
//         engine.max_context=1024 rollout.max_response_length=80 \
//         warm_start.demonstrations=2000 warm_start.steps=560 warm_start.batch_size=32 warm_start.mistake_rate=0 \
//         warm_start.careless_steps=12 warm_start.careless_rate=0.45

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, tool } from "ai";
import { z } from "zod";

const operators = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };

const calculate = tool({
  description: "Work out one operation.",
  inputSchema: z.object({ a: z.number(), sign: z.enum(["+", "-", "*", "/"]), b: z.number() }),
  execute: async ({ a, sign, b }) => operators[sign](a, b),
});

async function reward(task, baseURL, apiKey) {
  const { text } = await generateText({
    model: createOpenAI({ baseURL, apiKey })("policy"),
    system: 'Use the tool for every operation. Then end with "#### " and the number.',
    prompt: task.question,
    tools: { calculate },
    stopWhen: isStepCount(12),
  });
  const answer = /#### (\S+)/.exec(text);
  return answer && answer[1] === task.ground_truth ? 1 : 0;
}

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, TEXTENVS_TASK_FILE: file } = process.env;
if (file) {
  await fetch(`${baseURL}/rewards`, {
    method: "POST",
    headers: { Authorization: `Bearer ${apiKey}`, "Content-Type": "application/json" },
    body: JSON.stringify({ reward: await reward(JSON.parse(readFileSync(file, "utf8")), baseURL, apiKey) }),
  });
} else {
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, task, base_url, key } = JSON.parse(line);
    reward(task, base_url, key)
      .then((number) => ({ reward: number }), (error) => ({ error: String(error) }))
      .then((result) => console.log(JSON.stringify({ id, ...result })));
  }
}
