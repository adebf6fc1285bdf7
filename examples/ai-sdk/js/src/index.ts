// The Vercel AI SDK: `generateText` runs the tool loop, and the rollout's model answers.

import { generateText, stepCountIs, tool } from 'ai';
import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
import { hostModel } from 'rollout-sdk/ai';
import { z } from 'zod';

const calculator = tool({
  description: 'Adds and subtracts whole numbers.',
  inputSchema: z.object({ expression: z.string().describe('Whole numbers with `+` and `-` between them.') }),
  execute: async ({ expression }) => {
    const terms = expression.replaceAll(' ', '').replaceAll('-', '+-').split('+');
    return String(terms.filter((term) => term !== '').reduce((sum, term) => sum + Number(term), 0));
  },
});

export const workflow = defineWorkflow(async (ctx) => {
  const [system, user] = ctx.prompt;
  const { steps, usage } = await generateText({
    model: hostModel(ctx),
    instructions: String(system.content),
    prompt: String(user.content),
    tools: { calculator },
    stopWhen: stepCountIs(8),
    temperature: 0.7,
  });
  ctx.sample.metric('steps', steps.length);
  ctx.sample.metric('tokens', usage.outputTokens ?? 0);
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
