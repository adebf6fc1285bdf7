// Group graders. A group grader rates all samples of a group of rollouts at once, in an instance of its own, after every
// member has ended.

import './calls.js';

import { answerAfter } from './answer.js';
import { asFunction, asNumber, asText, shown } from './check.js';
import { Failed, Invalid } from './errors.js';
import { RolloutContext, runPart } from './host.js';
import { parseMessages } from './json.js';
import { lastAssistantText } from './message.js';
import { part } from './part.js';

class GroupSample {
  #rating;
  #metrics = new Map();

  constructor(member, { id, messages, metrics, reward }) {
    this.member = member;
    this.id = id;
    this.messages = parseMessages(messages, `sample \`${id}\` of member ${member}:`);
    this.metrics = Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
    this.reward = reward ?? undefined;
  }

  /** The text of the model's last message. */
  get text() {
    return lastAssistantText(this.messages);
  }

  answerAfter(marker) {
    return answerAfter(this.text, asText(marker, 'the marker'));
  }

  rate(reward) {
    this.#rating = asNumber(reward, `the reward of sample \`${this.id}\` of member ${this.member}`);
  }

  metric(name, value) {
    this.#metrics.set(asText(name, 'the name of a metric'), asNumber(value, `metric \`${name}\``));
  }

  static rating(sample) {
    const { member, id } = sample;
    if (sample.#rating === undefined) throw new Failed(`the group grader did not rate sample \`${id}\` of member ${member}`);
    const metrics = [...sample.#metrics].map(([name, value]) => ({ name, value }));
    return { member, sampleId: id, reward: sample.#rating, metrics };
  }
}

class GroupContext extends RolloutContext {
  constructor({ id, size, members, failed }, settings) {
    super(settings);
    this.id = id;
    this.size = size;
    this.members = members.map(({ number, rolloutId, label, samples }) => ({
      number,
      rolloutId,
      label: label ?? undefined,
      samples: samples.map((sample) => new GroupSample(number, sample)),
    }));
    this.failed = failed.map(({ number, reason }) => ({ number, reason }));
    this.samples = this.members.flatMap((member) => member.samples);
  }
}

/** Defines the plugin's group grader. */
export function defineGroupGrader(gradeGroup, { settings } = {}) {
  asFunction(gradeGroup, 'the argument of defineGroupGrader');
  return part('groupGrader', {
    gradeGroup: (group) =>
      runPart(async () => {
        const ctx = new GroupContext(group, settings);
        const samples = [...ctx.samples];
        const rewards = await gradeGroup(ctx);
        if (rewards !== undefined && rewards !== null) {
          if (!Array.isArray(rewards)) throw new Invalid(`a group grader has to return a list of rewards or nothing, not ${shown(rewards)}`);
          if (rewards.length !== samples.length) {
            throw new Failed(`the group grader returned ${rewards.length} rewards, and there are ${samples.length} samples`);
          }
          samples.forEach((sample, at) => sample.rate(rewards[at]));
        }
        return samples.map((sample) => GroupSample.rating(sample));
      }),
  });
}
