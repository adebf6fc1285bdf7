// An agent loop: it reports its tools before it runs, and rates itself.

import { answerAfter, defineAgentLoop, message, sameNumber, tool } from 'rollout-sdk';

const calculator = tool({
  name: 'calculator',
  description: 'Works out a sum.',
  parameters: {
    type: 'object',
    properties: { expression: { type: 'string', description: 'Whole numbers with `+` and `-` between them.' } },
    required: ['expression'],
  },
  execute: ({ expression }) => {
    const terms = expression.replaceAll('-', '+-').replaceAll(' ', '').split('+').filter(Boolean);
    if (!terms.every((term) => /^-?\d+$/.test(term))) throw new Error(`not a sum: ${expression}`);
    return terms.map(Number).reduce((sum, term) => sum + term, 0);
  },
});

export const agentLoop = defineAgentLoop({
  name: 'calculator',
  tools: [calculator],
  run: async (ctx) => {
    const messages = [...ctx.request.messages];
    let finishReason = 'max_turns';
    for (let turn = 0; turn < ctx.request.maxTurns; turn += 1) {
      ctx.logEvent('pre_llm', { turn, messages: messages.length });
      const reply = await ctx.chat(messages);
      messages.push(reply.message);
      if (reply.toolCalls.length === 0) {
        finishReason = 'stop';
        break;
      }
      messages.push(...(await ctx.executeTools(reply)));
    }
    const truth = ctx.metadata?.ground_truth;
    const answer = answerAfter(message.textOf(messages.at(-1)), '####');
    return ctx.complete(messages, {
      finishReason,
      reward: truth === undefined ? undefined : sameNumber(answer, truth),
    });
  },
});
