// Runs a plugin under Node, with `node --test`, vitest or any other runner, against replies from a script.

import { asList, isObject, shown } from '../check.js';
import { withOwnEpisode } from '../environment.js';
import { Invalid } from '../errors.js';
import { TestHost } from './host.js';

/** A rollout failed: `kind` is that of the contract, `reason` the text, and `cause` the error that the plugin threw. */
export class RolloutFailure extends Error {
  constructor(part, { tag, val, cause }) {
    super(`the ${part} failed (${tag}): ${val}`, { cause });
    this.name = 'RolloutFailure';
    this.part = part;
    this.kind = tag;
    this.reason = val;
  }
}

async function callPart(host, name, work) {
  try {
    return await host.run(work);
  } catch (thrown) {
    if (typeof thrown?.tag === 'string') throw new RolloutFailure(name, thrown);
    throw thrown;
  }
}

function promptOf(prompt) {
  const messages = typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : asList(prompt, 'prompt');
  return messages.map((message) => JSON.stringify(message));
}

const parsed = (texts) => texts.map((text) => JSON.parse(text));

/** Runs the workflow or agent loop of a plugin, then its grader, and returns what they did. */
export async function runRollout(plugin, options = {}) {
  const { workflow, agentLoop, grader } = isObject(plugin) ? plugin : {};
  if (workflow === undefined && agentLoop === undefined) {
    throw new Invalid(`runRollout takes the plugin's module, with workflow or agentLoop, not ${shown(plugin)}`);
  }
  const host = new TestHost(options);
  const prompt = promptOf(options.prompt ?? []);
  let reward;
  if (workflow !== undefined) {
    const output = await callPart(host, 'workflow', () => workflow.run(prompt));
    if (output.messages !== undefined) host.samples.open('main').replace(output.messages);
  } else {
    const { maxTurns = 16, maxTokensTotal = 1 << 20, completionParams = {} } = options;
    const request = { messages: prompt, maxTurns, maxTokensTotal, completionParams: JSON.stringify(completionParams) };
    const output = await callPart(host, 'agent loop', () => agentLoop.run(request));
    if (output.status.tag === 'error') throw new RolloutFailure('agent loop', { tag: 'failed', val: output.status.val });
    host.samplesOpened.get('main').replace(output.messages);
    reward = output.reward;
  }
  const samples = [...host.samplesOpened.values()];
  const verdicts = new Map();
  if (grader !== undefined) {
    const given = samples.map((sample) => ({
      id: sample.id(),
      messages: sample.messages,
      metrics: Object.entries(sample.metrics).map(([name, value]) => ({ name, value })),
    }));
    for (const verdict of await callPart(host, 'grader', () => grader.grade(options.label, given))) {
      verdicts.set(verdict.sampleId, verdict);
    }
  }
  const results = samples.map((sample) => {
    const verdict = verdicts.get(sample.id());
    const metrics = { ...sample.metrics };
    for (const { name, value } of verdict?.metrics ?? []) metrics[name] = value;
    return {
      id: sample.id(),
      messages: parsed(sample.messages),
      metrics,
      fields: sample.fields,
      withdrawn: sample.withdrawn || Boolean(verdict?.withdraw),
      reward: verdict?.reward ?? reward,
    };
  });
  return {
    samples: results,
    reward: results.length === 1 ? results[0].reward : undefined,
    requests: host.policy.requests,
    judgeRequests: host.judge.requests,
    artifacts: Object.fromEntries(host.artifactFiles),
    log: host.logLines,
    events: host.events,
  };
}

/** An episode of an environment. Its turns have observations as a caller receives them. */
class PlayedEpisode {
  #host;
  #environment;

  constructor(host, environment) {
    this.#host = host;
    this.#environment = environment;
  }

  get log() {
    return this.#host.logLines;
  }

  static async begin(host, environment, request) {
    const episode = new PlayedEpisode(host, environment);
    episode.first = await episode.#turn('reset', () => environment.reset(request));
    return episode;
  }

  /** Takes an action. */
  step(action) {
    return this.#turn('step', () => this.#environment.step({ tag: 'value', val: JSON.stringify(action) }));
  }

  /** Calls a tool. */
  call(name, given = {}) {
    const val = { name, arguments: JSON.stringify(given) };
    return this.#turn('step', () => this.#environment.step({ tag: 'call', val }));
  }

  /** Returns the visible state. */
  async state() {
    return JSON.parse(await callPart(this.#host, 'state', () => this.#environment.state()));
  }

  async #turn(name, work) {
    const { observation, reward, done, metadata } = await callPart(this.#host, name, work);
    return { observation: JSON.parse(observation), reward, done, metadata: metadata === undefined ? {} : JSON.parse(metadata) };
  }
}

/** Begins an episode of a plugin's environment. */
export async function play(plugin, options = {}) {
  const environment = withOwnEpisode(isObject(plugin) ? plugin.environment : undefined);
  if (environment === undefined) throw new Invalid(`play takes the plugin's module, with environment, not ${shown(plugin)}`);
  const { seed, episodeId } = options;
  const request = { seed, episodeId, arguments: JSON.stringify(options.arguments ?? {}) };
  return PlayedEpisode.begin(new TestHost(options), environment, request);
}

/** Returns a task of an environment. */
export async function taskOf(plugin, split, index) {
  return JSON.parse(await callPart(new TestHost({}), 'task', () => plugin.environment.task(split, index)));
}
