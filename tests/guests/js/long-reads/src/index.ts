// A typical agent: it calls a tool repeatedly, whose results have the length that the model requests. The same as
// `examples/long_reads.rs`, for `scripts/bench-languages`.

import { defineGrader, defineWorkflow, sameNumber, tool } from 'rollout-sdk';

const read = tool({
  name: 'read',
  description: 'Reads a number of bytes.',
  parameters: { type: 'object', properties: { bytes: { type: 'integer' } }, required: ['bytes'] },
  execute: ({ bytes }) => 'x'.repeat(bytes),
});

export const workflow = defineWorkflow((ctx) => ctx.agent({ tools: [read], maxTurns: 1000 }).run());

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
