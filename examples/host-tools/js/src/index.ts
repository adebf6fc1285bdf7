// A workflow without tools of its own, which uses tools that the operator provides.
//
// The model is offered all provided tools. With the configuration in this example these are the calculator of a Model
// Context Protocol server and the tools of a component. At the end the workflow itself calls the component's tool to
// format the answer.

import { answerAfter, defineGrader, defineWorkflow, hostTools, sameNumber } from 'rollout-sdk';

/** The host-provided tool that the workflow calls itself. */
const PLAIN = 'number_plain';

export const workflow = defineWorkflow(async (ctx) => {
  const run = await ctx
    .agent({ instructions: 'Use the calculator for every calculation.', tools: hostTools.all() })
    .run();

  run.sample.metric('tool_calls', run.toolCalls);
  const answer = answerAfter(run.text, '####');
  if (answer !== undefined) {
    // A failed or missing tool is reported in the result and does not fail the rollout.
    const result = await hostTools.call({ id: 'plain', name: PLAIN, arguments: JSON.stringify({ text: answer }) });
    run.sample.field('answer', { text: result.content, is_error: result.isError });
  }
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
