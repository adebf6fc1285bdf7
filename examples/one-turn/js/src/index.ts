// The smallest plugin: calls the model once and compares the number after `####` with the label.

import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';

export const workflow = defineWorkflow(async (ctx) => {
  await ctx.agent().run();
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
