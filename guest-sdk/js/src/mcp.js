// The Model Context Protocol (`@modelcontextprotocol/sdk`) in memory: a server's tools for an agent, and the tools of the
// operator for a client.

import { Failed, Invalid, ToolError } from './errors.js';
import { hostTools } from './host-tools.js';
import { shown } from './check.js';
import { tool } from './tool.js';

/** One end of a connection in memory. */
class MemoryTransport {
  #queue = [];
  #started = false;

  async start() {
    if (this.#started) throw new Failed('this transport is connected already');
    this.#started = true;
    for (const message of this.#queue.splice(0)) this.receive(message);
  }

  async send(message) {
    if (this.other === undefined) throw new Failed('this transport is closed');
    this.other.receive(message);
  }

  receive(message) {
    if (this.#started) queueMicrotask(() => this.onmessage?.(message));
    else this.#queue.push(message);
  }

  async close() {
    const { other } = this;
    this.other = undefined;
    this.onclose?.();
    if (other?.other !== undefined) await other.close();
  }
}

/** Returns the two transports of a connection in memory: one for a client, one for a server. */
export function inMemory() {
  const [client, server] = [new MemoryTransport(), new MemoryTransport()];
  client.other = server;
  server.other = client;
  return { client, server };
}

function textOf(result) {
  const parts = result.content ?? [];
  if (parts.length === 0 && result.structuredContent !== undefined) return JSON.stringify(result.structuredContent);
  return parts.map((part) => (part.type === 'text' ? part.text : JSON.stringify(part))).join('\n');
}

/** Returns the tools of the server that this client is connected to, for an agent. */
export async function mcpTools(client) {
  if (typeof client?.listTools !== 'function' || typeof client.callTool !== 'function') {
    throw new Invalid(`mcpTools takes a connected client, not ${shown(client)}; connect one with inMemory()`);
  }
  const tools = [];
  let cursor;
  do {
    const page = await client.listTools(cursor === undefined ? {} : { cursor });
    tools.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return tools.map(({ name, description, inputSchema }) =>
    tool({
      name,
      description: description ?? '',
      parameters: inputSchema,
      execute: async (given) => {
        const result = await client.callTool({ name, arguments: given });
        if (result.isError) throw new ToolError(textOf(result));
        return textOf(result);
      },
    }),
  );
}

const METHOD_NOT_FOUND = -32601;
const INVALID_PARAMS = -32602;

const METHODS = {
  initialize: (params) => ({
    protocolVersion: params.protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: 'rollout-host', version: '0.1.0' },
  }),
  ping: () => ({}),
  'tools/list': () => ({
    tools: hostTools.available().map(({ function: { name, description, parameters } }) => ({
      name,
      description,
      inputSchema: { type: 'object', ...parameters },
    })),
  }),
  'tools/call': async ({ name, arguments: given = {} }, id) => {
    const { content, isError } = await hostTools.call({ id: String(id), name, arguments: JSON.stringify(given) });
    return { content: [{ type: 'text', text: content }], isError };
  },
};

/** Returns a transport for a client of the protocol whose server has the tools that the operator provides. */
export function hostToolsTransport() {
  const { client, server } = inMemory();
  server.onmessage = async (request) => {
    if (request.id === undefined || request.method === undefined) return;
    const answer = (rest) => server.send({ jsonrpc: '2.0', id: request.id, ...rest });
    const method = Object.hasOwn(METHODS, request.method) ? METHODS[request.method] : undefined;
    if (method === undefined) {
      const message = `the operator's tools have no method ${request.method}, only ${Object.keys(METHODS).join(', ')}`;
      await answer({ error: { code: METHOD_NOT_FOUND, message } });
      return;
    }
    try {
      await answer({ result: await method(request.params ?? {}, request.id) });
    } catch (error) {
      await answer({ error: { code: INVALID_PARAMS, message: error.message } });
    }
  };
  server.start();
  return client;
}
