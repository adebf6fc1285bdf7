// Requests to models and their replies.

import * as models from '#contract/models';

import { outcome } from './calls.js';
import { isObject, shown } from './check.js';
import { ChatError, Invalid, JudgeError, callHost, modelErrorParts } from './errors.js';
import { dump, dumpMessages, parse } from './json.js';

/** The model's reply. */
export class Reply {
  #message;

  constructor(completion) {
    this.text = completion.text;
    this.toolCalls = completion.toolCalls.map(({ id, name, arguments: given }) => ({ id, name, arguments: given }));
    this.finishReason = completion.finishReason ?? undefined;
    const usage = completion.usage ?? undefined;
    this.usage = usage && {
      promptTokens: Number(usage.promptTokens),
      completionTokens: Number(usage.completionTokens),
    };
    this.#message = completion.message;
  }

  /** The assistant's message, to be stored unchanged. Parsed when it is first read. */
  get message() {
    if (typeof this.#message === 'string') this.#message = parse(this.#message, "the model's reply");
    return this.#message;
  }
}

const CASES = { temperature: 'temperature', maxTokens: 'max_tokens' };

/** Returns the sampling parameters of options as JSON text, or `undefined` for none. */
export function paramsOf(options) {
  const params = {};
  for (const [option, name] of Object.entries(CASES)) {
    if (options[option] !== undefined) params[name] = options[option];
  }
  if (options.params !== undefined) {
    if (!isObject(options.params)) throw new Invalid(`params has to be an object, not ${shown(options.params)}`);
    Object.assign(params, options.params);
  }
  return Object.keys(params).length === 0 ? undefined : dump(params, 'the sampling parameters');
}

function schemaTexts(tools) {
  return tools.map((each, index) => {
    const schema = each?.schema ?? each;
    if (!isObject(schema)) throw new Invalid(`tools[${index}] has to be a tool, not ${shown(each)}`);
    return dump(schema, `tools[${index}]`);
  });
}

function asSignal(signal) {
  if (signal !== undefined && typeof signal?.throwIfAborted !== 'function') {
    throw new Invalid(`signal has to be an AbortSignal, not ${shown(signal)}`);
  }
  return signal;
}

/** Calls the policy for a sample. */
export async function chat(handle, messages, { afterHistory, keepReply, tools = [], ...options }) {
  const texts = dumpMessages(messages, 'messages');
  const request = {
    conversation: { tag: afterHistory ? 'history' : 'messages', val: texts },
    tools: schemaTexts(tools),
    params: paramsOf(options),
    keepReply: Boolean(keepReply),
  };
  const read = (refused) => {
    const { kind, message, status, answer } = modelErrorParts(refused, 'model');
    return new ChatError(kind === 'not-provided' ? 'unavailable' : kind, message, status, answer);
  };
  const completion = await outcome(
    () => callHost(() => models.start('policy', handle, request), read),
    (call) => callHost(() => models.finish(call), read),
    asSignal(options.signal),
  );
  return new Reply(completion);
}

const NO_JUDGE =
  "this grader needs a judge, and the operator provides none; [judge] in the host's configuration, or --judge-url and " +
  '--judge-model, do';

/** Calls the judge. */
export async function askJudge(messages, options = {}) {
  const request = {
    conversation: { tag: 'messages', val: dumpMessages(messages, 'messages') },
    tools: [],
    params: paramsOf(options),
    keepReply: false,
  };
  const read = (refused) => {
    const { kind, message, status, answer } = modelErrorParts(refused, 'judge');
    return new JudgeError(kind, kind === 'not-provided' ? NO_JUDGE : message, status, answer);
  };
  const completion = await outcome(
    () => callHost(() => models.start('judge', undefined, request), read),
    (call) => callHost(() => models.finish(call), read),
    asSignal(options.signal),
  );
  return new Reply(completion);
}

