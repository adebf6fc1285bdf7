// The host of a test: it answers the contract's calls from a script and records what the plugin does.

import { AsyncLocalStorage } from 'node:async_hooks';

const current = new AsyncLocalStorage();

/** Returns the host of the rollout that runs. */
export function host() {
  const found = current.getStore();
  if (found === undefined) {
    throw new Error('this call belongs to a rollout; run the plugin with runRollout of rollout-sdk/testing');
  }
  return found;
}

function refuse(tag, val) {
  throw { tag, val };
}

/** Starts a call: `settled` is fulfilled when `finish` can return or throw. */
function start(work) {
  const call = {};
  const outcome = Promise.resolve().then(work);
  call.settled = outcome.then(
    (value) => Object.assign(call, { finish: () => value }),
    (reason) => Object.assign(call, { finish: () => { throw reason; } }),
  );
  return call;
}

function isPlain(value) {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}

/** Returns a scripted reply as an assistant's message of OpenAI's form. */
function messageOf(reply, callNumber) {
  if (typeof reply === 'string') return { role: 'assistant', content: reply };
  if (!isPlain(reply)) throw new TypeError(`reply ${callNumber} has to be a text, a message or an Error, not ${String(reply)}`);
  const { toolCalls, ...message } = reply;
  if (toolCalls === undefined) return { role: 'assistant', content: null, ...message };
  const calls = toolCalls.map(({ id, name, arguments: given }, index) => ({
    id: id ?? `call-${callNumber}-${index + 1}`,
    type: 'function',
    function: { name, arguments: typeof given === 'string' ? given : JSON.stringify(given ?? {}) },
  }));
  return { role: 'assistant', content: null, ...message, tool_calls: calls };
}

function completionOf(message) {
  const { content, tool_calls: calls = [] } = message;
  const parts = Array.isArray(content) ? content.map((part) => part.text ?? '') : [content ?? ''];
  return {
    message: JSON.stringify(message),
    text: parts.join('\n'),
    toolCalls: calls.map((call) => ({ id: call.id, name: call.function.name, arguments: call.function.arguments })),
    finishReason: calls.length > 0 ? 'tool_calls' : 'stop',
    usage: undefined,
  };
}

/** A model that answers from a list or by a function. */
class ScriptedModel {
  #given;
  #what;
  requests = [];

  constructor(given, what) {
    this.#given = given;
    this.#what = what;
  }

  async answer(request) {
    this.requests.push(request);
    const number = this.requests.length;
    if (this.#given === undefined) refuse('not-provided', `the test gives no ${this.#what}`);
    const reply = typeof this.#given === 'function' ? await this.#given(request, number) : this.#given[number - 1];
    if (reply === undefined) {
      throw new Error(`call ${number} of the model has no reply in ${this.#what}; add one, or give a function`);
    }
    if (reply instanceof Error) refuse(reply.kind ?? 'unavailable', reply.kind === 'refused' ? [reply.status ?? 500, reply.message] : reply.message);
    return messageOf(reply, number);
  }
}

class TestSample {
  #id;
  messages = [];
  metrics = {};
  fields = {};
  withdrawn = false;

  constructor(id) {
    this.#id = id;
  }

  id() {
    return this.#id;
  }

  push(texts) {
    this.messages.push(...texts);
  }

  replace(texts) {
    this.messages = [...texts];
  }

  history(from, count) {
    return this.messages.slice(from, from + count);
  }

  setMetric(name, value) {
    if (!Number.isFinite(value)) refuse('invalid', `metric ${name} is not finite`);
    this.metrics[name] = value;
  }

  setField(name, text) {
    this.fields[name] = JSON.parse(text);
  }

  withdraw() {
    this.withdrawn = true;
  }
}

export class TestHost {
  samplesOpened = new Map();
  artifactFiles = new Map();
  logLines = [];
  events = [];

  constructor({ replies, judgeReplies, config = {}, metadata, tools = [], rolloutId = 'test', samplesMax = 64, timeLeft }) {
    this.policy = new ScriptedModel(replies, 'replies');
    this.judge = new ScriptedModel(judgeReplies, 'judgeReplies');
    const exchanges = new Map();
    this.context = {
      rolloutId: () => rolloutId,
      attempt: () => 1,
      config: () => JSON.stringify(config),
      metadata: () => (metadata === undefined ? undefined : JSON.stringify(metadata)),
      timeLeftMs: () => timeLeft,
    };
    this.log = {
      line: (level, text) => this.logLines.push({ level, text }),
      event: (name, text) => this.events.push({ name, data: JSON.parse(text) }),
    };
    this.samples = {
      limit: () => samplesMax,
      open: (name) => {
        const id = name ?? `sample-${this.samplesOpened.size + 1}`;
        if (this.samplesOpened.has(id)) refuse('taken', id);
        if (this.samplesOpened.size >= samplesMax) refuse('too-many', samplesMax);
        const sample = new TestSample(id);
        this.samplesOpened.set(id, sample);
        return sample;
      },
    };
    this.models = {
      start: (role, sample, { conversation, tools: schemas, params, keepReply }) => {
        const isHistory = conversation.tag === 'history';
        if (isHistory) sample.push(conversation.val);
        const texts = isHistory ? [...sample.messages] : conversation.val;
        const request = {
          messages: texts.map((text) => JSON.parse(text)),
          tools: schemas.map((text) => JSON.parse(text)),
          params: params === undefined ? {} : JSON.parse(params),
        };
        return start(async () => {
          const message = await (role === 'judge' ? this.judge : this.policy).answer(request);
          const completion = completionOf(message);
          if (keepReply) sample.push([completion.message]);
          const body = JSON.stringify({ choices: [{ message }] });
          const exchange = { request: JSON.stringify(request), reply: { tag: 'ok', val: body } };
          if (sample !== undefined) exchanges.set(sample.id(), [...(exchanges.get(sample.id()) ?? []), exchange]);
          return completion;
        });
      },
      finish: (call) => call.finish(),
    };
    this.tools = {
      available: () => tools.map((tool) => JSON.stringify(tool.schema)),
      start: (call) =>
        start(() => {
          const found = tools.find((tool) => tool.name === call.name);
          if (found === undefined) return { callId: call.id, content: `error: there is no tool \`${call.name}\``, isError: true };
          return found.call(call);
        }),
      finish: (call) => call.finish(),
    };
    this.artifacts = {
      write: (name, bytes) => {
        this.artifactFiles.set(name, bytes);
      },
      read: (name) => this.artifactFiles.get(name) ?? refuse('not-found'),
      names: () => [...this.artifactFiles.keys()].sort(),
    };
    this.observations = { exchanges: (id) => exchanges.get(id) ?? [] };
  }

  /** Runs code of the plugin with this host. */
  run(work) {
    return current.run(this, work);
  }
}
