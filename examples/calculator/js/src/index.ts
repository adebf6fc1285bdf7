// A tool loop: the model solves an arithmetic problem with a calculator, which is a plain function.
//
// The workflow measures the number of calls and stores the calculations as an artifact. The grader compares the
// number after `####` with the label.

import { artifact, defineGrader, defineSettings, defineWorkflow, log, sameNumber, tool } from 'rollout-sdk';

import { evaluate } from './expression.ts';

export const settings = defineSettings({
  type: 'object',
  properties: {
    max_turns: { type: 'integer', minimum: 1, default: 8, description: 'Maximum number of model calls.' },
    temperature: { type: 'number', default: 0.7, description: 'Sampling temperature.' },
  },
  additionalProperties: false,
});

export const workflow = defineWorkflow(
  async (ctx) => {
    const paper: string[] = [];

    const calculator = tool({
      name: 'calculator',
      description: 'Evaluates an arithmetic expression.',
      parameters: {
        type: 'object',
        properties: {
          expression: {
            type: 'string',
            description: 'An expression of numbers, `+`, `-`, `*`, `/` and parentheses, such as `-(2 + 3) * 4`.',
          },
        },
        required: ['expression'],
      },
      execute: ({ expression }) => {
        const value = String(evaluate(expression));
        paper.push(`${expression} = ${value}\n`);
        return value;
      },
    });

    const run = await ctx
      .agent({
        instructions: 'Use the calculator for every calculation.',
        tools: [calculator],
        maxTurns: ctx.config.max_turns,
        temperature: ctx.config.temperature,
      })
      .run();

    run.sample.metric('tool_calls', run.toolCalls);
    artifact.write('calculations.txt', paper.join(''));
    log.info(`${run.stop} after ${run.turns} turns`);
  },
  { settings },
);

export const grader = defineGrader((ctx) => {
  const answer = ctx.sample.answerAfter('####');
  ctx.sample.metric('answered', answer !== undefined);
  return sameNumber(answer, ctx.requireLabel());
});
