// A graph of LangGraph: one node calls the model, the other its tools, until the model calls none.

import { tool } from '@langchain/core/tools';
import { MessagesAnnotation, StateGraph } from '@langchain/langgraph';
import { ToolNode, toolsCondition } from '@langchain/langgraph/prebuilt';
import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
import { hostModel } from 'rollout-sdk/langchain';
import { z } from 'zod';

const calculator = tool(
  ({ expression }: { expression: string }) => {
    const terms = expression.replaceAll(' ', '').replaceAll('-', '+-').split('+');
    return String(terms.filter((term) => term !== '').reduce((sum, term) => sum + Number(term), 0));
  },
  {
    name: 'calculator',
    description: 'Adds and subtracts whole numbers.',
    schema: z.object({ expression: z.string().describe('Whole numbers with `+` and `-` between them.') }),
  },
);

export const workflow = defineWorkflow(async (ctx) => {
  const model = hostModel(ctx, { temperature: 0.7 }).bindTools([calculator]);
  const graph = new StateGraph(MessagesAnnotation)
    .addNode('agent', async (state) => ({ messages: [await model.invoke(state.messages)] }))
    .addNode('tools', new ToolNode([calculator]))
    .addEdge('__start__', 'agent')
    .addConditionalEdges('agent', toolsCondition)
    .addEdge('tools', 'agent')
    .compile();
  const messages = ctx.prompt.map(({ role, content }) => ({ role, content: String(content) }));
  const result = await graph.invoke({ messages }, { recursionLimit: 16 });
  ctx.sample.metric('messages', result.messages.length);
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
