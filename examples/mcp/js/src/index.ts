// A server of the Model Context Protocol in the same component: its tools are the agent's.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { defineGrader, defineWorkflow, sameNumber } from 'rollout-sdk';
import { inMemory, mcpTools } from 'rollout-sdk/mcp';
import { z } from 'zod';

function createServer(): McpServer {
  const server = new McpServer({ name: 'arithmetic', version: '1.0.0' });
  const about = {
    description: 'Adds and subtracts whole numbers.',
    inputSchema: { expression: z.string().describe('Whole numbers with `+` and `-` between them.') },
  };
  server.registerTool('calculator', about, async ({ expression }) => {
    const terms = expression.replaceAll(' ', '').replaceAll('-', '+-').split('+');
    const sum = terms.filter((term) => term !== '').reduce((all, term) => all + Number(term), 0);
    return { content: [{ type: 'text', text: String(sum) }] };
  });
  return server;
}

export const workflow = defineWorkflow(async (ctx) => {
  const ends = inMemory();
  const client = new Client({ name: 'agent', version: '1.0.0' });
  await Promise.all([createServer().connect(ends.server), client.connect(ends.client)]);
  const run = await ctx.agent({ tools: await mcpTools(client), temperature: 0.7 }).run();
  run.sample.metric('tool_calls', run.toolCalls);
});

export const grader = defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel()));
