// A workflow that calls the model once, a grader, and a group grader that compares the answers.

import { Failed, defineGrader, defineGroupGrader, defineWorkflow, sameNumber } from 'rollout-sdk';

export const workflow = defineWorkflow((ctx) => ctx.agent().run());

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));

/** Rates each answer by its rank among the numbers of the group, from 0 to 1. */
export const groupGrader = defineGroupGrader(async (ctx) => {
  if (ctx.id.startsWith('reject')) throw new Failed(`there is no order among ${ctx.samples.length} samples`);
  const numbers = ctx.samples.map((sample) => Number(sample.answerAfter('####')));
  const rank = (number: number) => numbers.filter((other) => other < number).length / Math.max(numbers.length - 1, 1);
  for (const [at, member] of ctx.members.entries()) {
    const [sample] = member.samples;
    if (member.label !== '2' || sample === undefined) throw new Failed('the member is incomplete');
    sample.metric('before', sample.reward ?? -1);
    sample.metric('failed', ctx.failed.length);
    if (!ctx.id.startsWith('forget')) sample.rate(rank(numbers[at]!));
  }
  return /rated|forget/.test(ctx.id) ? undefined : numbers.map(rank);
});
