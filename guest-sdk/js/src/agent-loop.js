// Agent loops: agents that report their tools before they run, run within advisory limits, and return their final
// messages, optionally with a reward.

import { asFunction, asList, asNumber, asText, isObject, shown } from './check.js';
import { Invalid } from './errors.js';
import { RolloutContext, log, runPart } from './host.js';
import { dump, dumpMessages, parseMessages, parseObject } from './json.js';
import { message, toolCallsOf } from './message.js';
import { part } from './part.js';
import { Sample } from './sample.js';
import { Toolbox } from './tool.js';

/** Id of the only sample of an agent loop. */
const SAMPLE = 'main';

const outputs = new WeakSet();

class LoopRequest extends RolloutContext {
  constructor(request, settings) {
    super(settings);
    this.messages = parseMessages(request.messages, 'prompt');
    this.maxTurns = request.maxTurns;
    this.maxTokensTotal = request.maxTokensTotal;
    this.completionParams = parseObject(request.completionParams, 'completion_params');
  }
}

export class LoopContext {
  #toolbox;
  #toolCalls = 0;
  #toolTimeMs = 0;

  constructor(request, tools) {
    this.request = request;
    this.tools = tools.map((each) => each.schema ?? each);
    this.sample = new Sample(SAMPLE);
    this.#toolbox = new Toolbox(tools.filter((each) => typeof each.call === 'function'));
  }

  get config() {
    return this.request.config;
  }

  get rolloutId() {
    return this.request.rolloutId;
  }

  get attempt() {
    return this.request.attempt;
  }

  get metadata() {
    return this.request.metadata;
  }

  get timeLeft() {
    return this.request.timeLeft;
  }

  /** Calls the model with these messages and the loop's tools. */
  chat(messages, options = {}) {
    return this.sample.chat(messages, { tools: this.tools, ...options });
  }

  /** Makes the tool calls of a reply or a message, counts them, and returns the messages with their results. */
  async executeTools(calls) {
    const list = Array.isArray(calls) ? calls : (calls?.toolCalls ?? toolCallsOf(calls));
    return Promise.all(
      list.map(async (call) => {
        const began = Date.now();
        const [result] = await this.#toolbox.execute([call]);
        this.recordToolCall(Date.now() - began);
        return message.toolResult(result.callId, result.content);
      }),
    );
  }

  recordToolCall(milliseconds = 0) {
    this.#toolCalls += 1;
    this.#toolTimeMs += asNumber(milliseconds, 'the duration of a tool call');
  }

  logEvent(name, data) {
    log.event(name, data);
  }

  complete(messages, { finishReason = 'stop', reward, metrics = {} } = {}) {
    return this.#output({ tag: 'completed' }, messages, finishReason, reward, metrics);
  }

  error(reason, messages, { metrics = {} } = {}) {
    return this.#output({ tag: 'error', val: asText(reason, 'the reason') }, messages, 'error', undefined, metrics);
  }

  #output(status, messages, finishReason, reward, metrics) {
    const output = {
      status,
      messages: dumpMessages(messages, 'messages'),
      finishReason: asText(finishReason, 'finishReason'),
      reward: reward === undefined || reward === null ? undefined : asNumber(reward, 'the reward'),
      metrics: Object.entries(metrics).map(([name, value]) => ({ name, value: asNumber(value, `metric \`${name}\``) })),
      toolCalls: this.#toolCalls,
      toolTimeMs: this.#toolTimeMs,
    };
    outputs.add(output);
    return output;
  }
}

async function toolsOf(given, request) {
  const found = typeof given === 'function' ? await given(request) : given;
  return asList(found, 'tools').map((each, index) => {
    if (!isObject(each)) throw new Invalid(`tools[${index}] has to be a tool or a schema, not ${shown(each)}`);
    return each;
  });
}

/** Defines the plugin's agent loop. */
export function defineAgentLoop({ name, tools = [], run, settings }) {
  asText(name, 'the name of an agent loop');
  asFunction(run, 'run of an agent loop');
  return part('agentLoop', {
    name: () => name,
    getTools: (given) =>
      runPart(async () => {
        const found = await toolsOf(tools, new LoopRequest(given, settings));
        return found.map((each, index) => dump(each.schema ?? each, `tools[${index}]`));
      }),
    run: (given) =>
      runPart(async () => {
        const request = new LoopRequest(given, settings);
        const output = await run(new LoopContext(request, await toolsOf(tools, request)));
        if (!isObject(output) || !outputs.has(output)) {
          throw new Invalid(`an agent loop has to return ctx.complete(…) or ctx.error(…), not ${shown(output)}`);
        }
        return output;
      }),
  });
}
