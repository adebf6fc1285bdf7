// Types of `rollout-sdk/mcp`, for `@modelcontextprotocol/sdk`.

import type { Client } from '@modelcontextprotocol/sdk/client/index.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';

import type { Tool } from './index.js';

/** Returns the two ends of a connection in memory: connect the client to one and the server to the other. */
export declare function inMemory(): { client: Transport; server: Transport };

/**
 * Returns the tools of the server that this client is connected to, for an agent. An error of a tool is reported to the
 * model.
 */
export declare function mcpTools(client: Client): Promise<Tool[]>;

/** Returns a transport for a client whose server has the tools that the operator provides. For workflows only. */
export declare function hostToolsTransport(): Transport;
