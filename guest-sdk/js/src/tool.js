// Tools: functions that the model may call. A mistake in a call is reported to the model and never fails the rollout.

import { RolloutError } from './errors.js';
import { asFunction, asText, shown } from './check.js';
import { dump, parseObject } from './json.js';
import { Invalid } from './errors.js';
import { Mismatch, schemaOf } from './schema.js';

/** Creates a tool. */
export function tool({ name, description = '', parameters, execute }) {
  asText(name, 'the name of a tool');
  asText(description, `tool \`${name}\`: the description`);
  asFunction(execute, `tool \`${name}\`: execute`);
  const { json, read } = schemaOf(parameters, `tool \`${name}\`: parameters`);
  const schema = { type: 'function', function: { name, description, parameters: json } };
  // An environment's tools receive its episode, too.
  const run = async (text, episode) => {
    // Models send empty arguments to a function without parameters.
    const given = parseObject(text.trim() === '' ? undefined : text, 'the arguments');
    let values;
    try {
      values = read(given);
    } catch (error) {
      throw error instanceof Mismatch ? new Invalid(`the arguments: ${error.message}`) : error;
    }
    return execute(values, episode);
  };
  return {
    name,
    schema,
    execute,
    run,
    call: async (call) => {
      try {
        return { callId: call.id, content: asResultText(await run(call.arguments)), isError: false };
      } catch (error) {
        return failed(call, explain(error));
      }
    },
  };
}

/** Returns a result as text for the model: a string verbatim, anything else as JSON. */
export function asResultText(result) {
  if (typeof result === 'string') return result;
  return result === undefined ? 'null' : dump(result, 'the result');
}

export function failed(call, reason) {
  return { callId: call.id, content: `error: ${reason}`, isError: true };
}

/** Returns the text that the model receives for an error. */
export function explain(error) {
  if (error instanceof RolloutError) return error.message;
  if (error instanceof Error) return error.message || error.name;
  return typeof error === 'string' ? error : shown(error);
}

/** The tools of one conversation. A later tool replaces an earlier one of its name. */
export class Toolbox {
  #tools;

  constructor(tools) {
    this.#tools = [...new Map(tools.map((each) => [each.name, each])).values()];
  }

  get schemas() {
    return this.#tools.map((each) => each.schema);
  }

  /** Makes the calls concurrently and returns the results in the order of the calls. */
  execute(calls) {
    return Promise.all(
      calls.map((call) => {
        const found = this.#tools.find((each) => each.name === call.name);
        return found === undefined ? failed(call, this.#unknown(call)) : found.call(call);
      }),
    );
  }

  #unknown(call) {
    const names = this.#tools.map((each) => each.name);
    const there = names.length === 0 ? 'there are none' : `there are: ${names.join(', ')}`;
    return `there is no tool \`${call.name}\`; ${there}`;
  }
}
