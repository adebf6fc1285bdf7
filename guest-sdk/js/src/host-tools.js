// Tools that the operator provides. For workflows only.

import * as tools from '#contract/tools';

import { outcome } from './calls.js';
import { asText } from './check.js';
import { checkRunning } from './host.js';
import { parseObject } from './json.js';

async function call(given) {
  const toolCall = {
    id: asText(given?.id ?? '', 'the id of a tool call'),
    name: asText(given?.name, 'the name of a tool call'),
    arguments: asText(given?.arguments ?? '', 'the arguments of a tool call'),
  };
  const { callId, content, isError } = await outcome(() => tools.start(toolCall), (started) => tools.finish(started));
  return { callId, content, isError };
}

/** Tools that the operator provides to this plugin and the host runs. */
export const hostTools = {
  /** Returns the schemas. */
  available: () => {
    checkRunning('hostTools.available');
    return tools.available().map((text) => parseObject(text, 'the schema of a provided tool'));
  },
  /** Returns the tools, for an agent. */
  all: () =>
    hostTools.available().map((schema) => ({
      name: schema.function.name,
      schema,
      call,
      run: async (given) => (await call({ id: '', name: schema.function.name, arguments: given })).content,
    })),
  /** Makes a call. */
  call,
  /** Makes the calls concurrently and returns the results in the order of the calls. */
  execute: (calls) => Promise.all(calls.map(call)),
};
