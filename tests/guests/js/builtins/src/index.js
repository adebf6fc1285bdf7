// Runs the cases of this guest; the prompt names a group.

import { defineGrader, defineWorkflow } from 'rollout-sdk';

import { results } from './cases.js';

export const workflow = defineWorkflow(async (ctx) => {
  const content = JSON.stringify(await results(ctx.prompt.at(-1).content));
  return [...ctx.prompt, { role: 'assistant', content }];
});

export const grader = defineGrader(() => 1);
