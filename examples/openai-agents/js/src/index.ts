// Two agents of OpenAI Agents, one of which hands over.

import { Agent, Runner, tool } from '@openai/agents-core';
import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
import { hostModelProvider } from 'rollout-sdk/openai-agents';
import { z } from 'zod';

const calculator = tool({
  name: 'calculator',
  description: 'Adds and subtracts whole numbers.',
  parameters: z.object({ expression: z.string().describe('Whole numbers with `+` and `-` between them.') }),
  execute: async ({ expression }) => {
    const terms = expression.replaceAll(' ', '').replaceAll('-', '+-').split('+');
    return String(terms.filter((term) => term !== '').reduce((sum, term) => sum + Number(term), 0));
  },
});

export const workflow = defineWorkflow(async (ctx) => {
  const [system, user] = ctx.prompt;
  const words = new Agent({ name: 'Words', instructions: 'Answer in words.' });
  const agent = new Agent({
    name: 'Arithmetic',
    instructions: `${system.content}\n\nUse the calculator. Hand over what is no sum.`,
    tools: [calculator],
    handoffs: [words],
    modelSettings: { temperature: 0.7 },
  });
  const runner = new Runner({ modelProvider: hostModelProvider(ctx), tracingDisabled: true });
  const result = await runner.run(agent, String(user.content));
  ctx.sample.metric('items', result.newItems.length);
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
