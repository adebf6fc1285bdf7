// The client `openai` with a loop of the author's own. Its `fetch` reaches the rollout's model.

import OpenAI from 'openai';
import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
import { hostFetch } from 'rollout-sdk/openai';

const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'calculator',
      description: 'Adds and subtracts whole numbers.',
      parameters: { type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] },
    },
  },
];

function calculate(expression: string): string {
  const terms = expression.replaceAll(' ', '').replaceAll('-', '+-').split('+');
  return String(terms.filter((term) => term !== '').reduce((sum, term) => sum + Number(term), 0));
}

export const workflow = defineWorkflow(async (ctx) => {
  // The host has the key of the model's server.
  const client = new OpenAI({ apiKey: 'none', baseURL: 'http://model/v1', fetch: hostFetch(ctx) });
  const messages = [...ctx.prompt] as OpenAI.ChatCompletionMessageParam[];
  for (let turn = 0; turn < 8; turn += 1) {
    const { choices } = await client.chat.completions.create({ model: 'policy', messages, tools, temperature: 0.7 });
    const { message } = choices[0];
    messages.push(message);
    for (const call of message.tool_calls ?? []) {
      if (call.type !== 'function') continue;
      const { expression } = JSON.parse(call.function.arguments);
      messages.push({ role: 'tool', tool_call_id: call.id, content: calculate(expression) });
    }
    if (!message.tool_calls?.length) break;
  }
  ctx.sample.metric('messages', messages.length);
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
