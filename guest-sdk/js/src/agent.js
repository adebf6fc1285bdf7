// The ready-made tool loop. Every message is pushed to the sample as it arrives, so an aborted rollout still has its
// history.

import { asList, shown } from './check.js';
import { ChatError, Invalid } from './errors.js';
import { dump } from './json.js';
import { lastAssistantText, message, textOf } from './message.js';
import { Toolbox } from './tool.js';

/** Maximum number of model calls in a run, unless `maxTurns` sets another. */
const TURNS_MAX = 16;

/** Adds instructions after the system message at the start, or as a new first message. */
function instruct(messages, instructions) {
  const [first, ...rest] = messages;
  if (first?.role !== 'system') return [message.system(instructions), ...messages];
  return [{ ...first, content: `${textOf(first)}\n\n${instructions}` }, ...rest];
}

function turnsOf(maxTurns) {
  if (!Number.isInteger(maxTurns)) throw new Invalid(`maxTurns has to be a whole number, not ${shown(maxTurns)}`);
  return Math.max(1, maxTurns);
}

export class Agent {
  #options;
  #fresh;
  #toolbox;
  #turnsMax;

  constructor(sample, messages, { instructions, tools = [], maxTurns = TURNS_MAX, ...options } = {}) {
    this.sample = sample;
    this.#fresh = instructions === undefined ? [...messages] : instruct(messages, instructions);
    this.#toolbox = new Toolbox(checkTools(tools));
    this.#turnsMax = turnsOf(maxTurns);
    this.#options = { ...options, tools: this.#toolbox.schemas };
  }

  /** Adds messages to the conversation. */
  say(...messages) {
    this.#fresh.push(...messages);
    return this;
  }

  /** Runs the loop. A spent budget ends it like any other limit. */
  async run() {
    const run = { turns: 0, toolCalls: 0, usage: { promptTokens: 0, completionTokens: 0 }, text: '' };
    const finish = (stop) => new AgentRun(this, stop, run);
    for (;;) {
      const fresh = this.#fresh;
      this.#fresh = [];
      let reply;
      try {
        reply = await this.sample.continueChat(fresh, this.#options);
      } catch (error) {
        if (error instanceof ChatError && error.kind === 'budget-spent') return finish('budget-spent');
        throw error;
      }
      run.turns += 1;
      run.text = reply.text;
      run.usage.promptTokens += reply.usage?.promptTokens ?? 0;
      run.usage.completionTokens += reply.usage?.completionTokens ?? 0;
      // Tool calls in a truncated reply would be truncated too.
      if (reply.finishReason === 'length') return finish('length');
      if (reply.toolCalls.length === 0) return finish('stopped');
      // The turns are used up, so the results would not be read.
      if (run.turns === this.#turnsMax) return finish('turn-limit');
      const results = await this.#toolbox.execute(reply.toolCalls);
      this.#fresh = results.map((result) => message.toolResult(result.callId, result.content));
      run.toolCalls += results.length;
    }
  }
}

function checkTools(tools) {
  return asList(tools, 'tools').map((each, index) => {
    if (typeof each?.call !== 'function' || each.schema === undefined) {
      throw new Invalid(`tools[${index}] has to be made by tool(…), not ${shown(each)}`);
    }
    dump(each.schema, `tools[${index}]`);
    return each;
  });
}

/** Result of an agent's run. */
export class AgentRun {
  constructor(agent, stop, { turns, toolCalls, usage, text }) {
    this.agent = agent;
    this.stop = stop;
    this.turns = turns;
    this.toolCalls = toolCalls;
    this.usage = usage;
    this.text = text === '' && turns === 0 ? lastAssistantText(agent.sample.messages) : text;
  }

  get sample() {
    return this.agent.sample;
  }

  /** The whole conversation, fetched from the host. */
  get messages() {
    return this.agent.sample.messages;
  }
}
