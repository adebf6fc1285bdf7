// Graders. A grader runs after the workflow, in an instance of its own, and is the only code that sees the label.

import './calls.js';

import * as observations from '#contract/observations';

import { answerAfter } from './answer.js';
import { asFunction, asNumber, asText, shown } from './check.js';
import { Failed, Invalid } from './errors.js';
import { RolloutContext, runPart } from './host.js';
import { parse, parseMessages } from './json.js';
import { lastAssistantText } from './message.js';
import { part } from './part.js';

export class GradedSample {
  #reward;
  #withdrawn = false;
  #metrics = new Map();

  constructor({ id, messages, metrics }) {
    this.id = id;
    this.messages = parseMessages(messages, `sample \`${id}\`:`);
    this.metrics = Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  }

  /** The text of the model's last message. */
  get text() {
    return lastAssistantText(this.messages);
  }

  answerAfter(marker) {
    return answerAfter(this.text, asText(marker, 'the marker'));
  }

  get reward() {
    return this.#reward;
  }

  set reward(reward) {
    this.#reward = reward === undefined || reward === null ? undefined : asNumber(reward, `the reward of sample \`${this.id}\``);
  }

  metric(name, value) {
    this.#metrics.set(asText(name, 'the name of a metric'), asNumber(value, `metric \`${name}\``));
  }

  withdraw() {
    this.#withdrawn = true;
  }

  /** Every model call of this sample as the host recorded it. */
  observed() {
    return observations.exchanges(this.id).map(({ request, reply }) => ({
      request: parse(request, 'an observed request'),
      reply: reply.tag === 'ok' ? parse(reply.val, 'an observed reply') : undefined,
      error: reply.tag === 'ok' ? undefined : reply.val,
    }));
  }

  static verdict(sample) {
    const metrics = [...sample.#metrics].map(([name, value]) => ({ name, value }));
    return { sampleId: sample.id, reward: sample.#reward, metrics, withdraw: sample.#withdrawn };
  }
}

export class GraderContext extends RolloutContext {
  constructor(label, samples, settings) {
    super(settings);
    this.label = label ?? undefined;
    this.samples = samples;
  }

  requireLabel() {
    if (this.label === undefined) throw new Invalid('the row has no ground truth');
    return this.label;
  }

  /** The only sample of the rollout. */
  get sample() {
    if (this.samples.length !== 1) throw new Failed(`this grader rates one sample, and there are ${this.samples.length}`);
    return this.samples[0];
  }
}

/** Defines the plugin's grader. */
export function defineGrader(grade, { settings } = {}) {
  asFunction(grade, 'the argument of defineGrader');
  return part('grader', {
    grade: (label, given) =>
      runPart(async () => {
        const samples = given.map((sample) => new GradedSample(sample));
        const ctx = new GraderContext(label, samples, settings);
        const returned = await grade(ctx);
        if (typeof returned === 'number' || typeof returned === 'boolean') ctx.sample.reward = returned;
        else if (returned !== undefined && returned !== null) {
          throw new Invalid(`a grader has to return a number, a boolean or nothing, not ${shown(returned)}`);
        }
        return samples.map((sample) => GradedSample.verdict(sample));
      }),
  });
}
