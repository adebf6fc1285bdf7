// A framework's requests to the model, recorded in a sample.
//
// A framework sends its whole conversation with each request. The sample's history is the conversation as the host has
// it, with unchanged replies. Messages at the beginning of the history are not sent again.

import { asList, isObject, shown } from './check.js';
import { Invalid } from './errors.js';
import { textOf, toolCallsOf } from './message.js';

function argumentsOf(text) {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text;
  }
}

/**
 * Returns the parts of a message that every rendition of it has: role, text, tool calls and the id of the answered
 * call.
 */
function essence(message) {
  const content = typeof message.content === 'string' || !Array.isArray(message.content) ? textOf(message) : undefined;
  const parts = content ?? (message.content.every((part) => part?.type === 'text') ? textOf(message) : message.content);
  const calls = toolCallsOf(message).map((call) => [call.id, call.name, argumentsOf(call.arguments)]);
  return JSON.stringify([message.role, parts, calls, message.tool_call_id]);
}

/** The conversation of one sample. */
class Conversation {
  #sample;
  /** Essences of the messages in the sample's history. */
  #known;
  #busy = false;

  constructor(sample) {
    this.#sample = sample;
    this.#known = sample.messages.map(essence);
  }

  /** Sends a conversation with tools, sampling parameters and a signal. Returns the reply. */
  async send(messages, options) {
    if (this.#busy) {
      throw new Invalid(
        'two requests use one sample at the same time; give each a sample of its own: ctx.openSample(name)',
      );
    }
    this.#busy = true;
    try {
      return await this.#send(messages, options);
    } finally {
      this.#busy = false;
    }
  }

  async #send(messages, options) {
    const wanted = messages.map(essence);
    let same = 0;
    while (same < wanted.length && wanted[same] === this.#known[same]) same += 1;
    if (same < this.#known.length) {
      // The framework changed earlier messages, so the history changes, too.
      this.#sample.replace([...this.#sample.messages.slice(0, same), ...messages.slice(same)]);
      this.#known = wanted;
      same = wanted.length;
    }
    this.#known = wanted;
    const reply = await this.#sample.continueChat(messages.slice(same), options);
    this.#known = [...wanted, essence(reply.message)];
    return reply;
  }
}

const conversations = new WeakMap();

/** Returns the conversation of a sample, or of the main sample of a context. */
export function conversationOf(given, what) {
  const sample = typeof given?.openSample === 'function' ? given.sample : given;
  if (typeof sample?.continueChat !== 'function') {
    throw new Invalid(`the first argument of ${what} has to be the workflow's context or a sample, not ${shown(given)}`);
  }
  if (!conversations.has(sample)) conversations.set(sample, new Conversation(sample));
  return conversations.get(sample);
}

/** Returns the given sampling parameters without those that are `undefined`. */
export function definedOnly(parameters) {
  return Object.fromEntries(Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null));
}

/** Returns a function tool in OpenAI's form. */
export function functionTool(name, description, parameters, strict) {
  return { type: 'function', function: definedOnly({ name, description, parameters, strict }) };
}

/** Returns messages of OpenAI's form after a check. */
export function asMessages(messages, what) {
  return asList(messages, what).map((message, index) => {
    if (!isObject(message)) throw new Invalid(`${what}[${index}] has to be a message, an object, not ${shown(message)}`);
    return message;
  });
}
