// Samples: conversations that are graded and trained on.

import * as samples from '#contract/samples';

import { asNumber, asText } from './check.js';
import { OpenError, RecordError, callHost } from './errors.js';
import { checkRunning } from './host.js';
import { dump, dumpMessages, parseMessages } from './json.js';
import { chat } from './models.js';

const ALL = 0x7fffffff;

function openError({ tag, val }) {
  const texts = {
    'too-many': `this rollout takes ${val} samples at the most (samples-max of the host, or less where its caller takes fewer)`,
    taken: `the sample name \`${val}\` is taken`,
    invalid: `not a sample name: ${val}`,
  };
  return new OpenError(tag, texts[tag]);
}

function recordError({ tag, val }) {
  return new RecordError(tag, tag === 'invalid' ? `not recorded: ${val}` : `not recorded, a limit is reached: ${val}`);
}

/** One conversation. It is registered with the host as soon as it is opened. */
export class Sample {
  #handle;

  constructor(name) {
    checkRunning('a sample');
    const given = name === undefined ? undefined : asText(name, 'the name of a sample');
    this.#handle = callHost(() => samples.Sample.open(given), openError);
    this.id = this.#handle.id();
  }

  /** Calls the model with these messages, which are not pushed. The reply is pushed only with `keepReply`. */
  chat(messages, options = {}) {
    return chat(this.#handle, messages, { keepReply: false, ...options, afterHistory: false });
  }

  /** Calls the model with the history and these messages at its end, which are pushed, as is the reply. */
  continueChat(messages = [], options = {}) {
    return chat(this.#handle, messages, { keepReply: true, ...options, afterHistory: true });
  }

  push(...messages) {
    callHost(() => this.#handle.push(dumpMessages(messages, 'messages')), recordError);
  }

  replace(messages) {
    callHost(() => this.#handle.replace(dumpMessages(messages, 'messages')), recordError);
  }

  /** The history, as the host has it. */
  get messages() {
    return parseMessages(this.#handle.history(0, ALL), `sample \`${this.id}\`:`);
  }

  metric(name, value) {
    const text = asText(name, 'the name of a metric');
    callHost(() => this.#handle.setMetric(text, asNumber(value, `metric \`${text}\``)), recordError);
  }

  field(name, value) {
    const text = asText(name, 'the name of a field');
    callHost(() => this.#handle.setField(text, dump(value, `field \`${text}\``)), recordError);
  }

  withdraw() {
    this.#handle.withdraw();
  }
}

/** Returns the maximum number of samples that the rollout's caller accepts. */
export function samplesMax() {
  return samples.limit();
}
