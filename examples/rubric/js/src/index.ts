// A judge as the reward function: the model explains something, and another model rates the explanation by a rubric.
//
// The operator provides the judge. If it fails, the error leaves the rollout without a reward.

import { defineGrader, defineSettings, defineWorkflow, log, message, rubric } from 'rollout-sdk';

export const settings = defineSettings({
  type: 'object',
  properties: {
    rubric: {
      type: 'string',
      default: 'The answer names the right fact, and explains it in words that a child of ten understands.',
      description: 'The rubric.',
    },
    score_max: {
      type: 'number',
      minimum: 1,
      default: 10,
      description: 'The highest score that the judge may give; the lowest is 0.',
    },
  },
  additionalProperties: false,
});

export const workflow = defineWorkflow(async (ctx) => {
  await ctx.agent({ instructions: 'Answer in two or three plain sentences.' }).run();
});

export const grader = defineGrader(
  async (ctx) => {
    const { rubric: text, score_max: scoreMax } = ctx.config;
    const { sample } = ctx;
    const asked = sample.messages.find(({ role }) => role === 'user');
    const rating = await rubric(text, {
      range: [0, scoreMax],
      input: message.textOf(asked),
      truth: ctx.requireLabel(),
    }).rate(sample.text);

    log.info(`${rating.score} of ${scoreMax}: ${rating.explanation}`);
    sample.metric('judge_score', rating.score);
    return rating.score / scoreMax;
  },
  { settings },
);
