// An environment over arithmetic tasks: the model guesses the result and learns whether it is higher or lower, until it
// has found it or used up its guesses. Fewer guesses earn a higher reward.

import { defineEnvironment, Invalid, parseNumber, turn } from 'rollout-sdk';

import text from '../rows.jsonl';

/** Number of guesses in an episode. */
const GUESSES_MAX = 8;

interface Row {
  user_prompt: string;
  ground_truth: string;
}

const ROWS: Row[] = text.trim().split('\n').map((line) => JSON.parse(line));

const SPLITS: Record<string, Row[]> = { train: ROWS.slice(0, 12), test: ROWS.slice(12) };

/** Returns the rows of a split. */
function rowsOf(split: string): Row[] {
  if (!Object.hasOwn(SPLITS, split)) throw new Invalid(`there is no split '${split}'; there are: ${Object.keys(SPLITS).join(', ')}`);
  return SPLITS[split];
}

function rowOf(split: string, index: number): Row {
  const rows = rowsOf(split);
  if (rows[index] === undefined) throw new Invalid(`the split '${split}' has no task ${index}; it has ${rows.length}`);
  return rows[index];
}

/** An episode. */
class Hunt {
  guesses: number[] = [];

  constructor(readonly hidden: number) {}

  hint(text: string) {
    return { text, guesses_left: GUESSES_MAX - this.guesses.length };
  }
}

export const environment = defineEnvironment({
  name: 'number-hunt',
  description: 'Find the result of an arithmetic problem with hints: higher or lower.',

  // A guess.
  action: {
    title: 'Guess',
    type: 'object',
    properties: { number: { type: 'number', description: 'The number.' } },
    required: ['number'],
    additionalProperties: false,
  },

  // The task, or the answer to the last guess.
  observation: {
    title: 'Hint',
    type: 'object',
    properties: { text: { type: 'string' }, guesses_left: { type: 'integer', minimum: 0 } },
    required: ['text', 'guesses_left'],
  },

  // A row, or the name of a task.
  arguments: {
    type: 'object',
    properties: {
      user_prompt: { type: 'string' },
      ground_truth: { type: 'string' },
      split: { type: 'string', default: 'train' },
      index: { type: 'integer', minimum: 0 },
    },
  },

  reset(start) {
    let { user_prompt, ground_truth } = start.arguments;
    const { split, index } = start.arguments;
    if (ground_truth === undefined) {
      // Without a task, the seed selects one.
      ({ user_prompt, ground_truth } = rowOf(split, index ?? (start.seed ?? 0) % rowsOf(split).length));
    }
    if (user_prompt === undefined) throw new Invalid('a row needs user_prompt');
    const hidden = parseNumber(ground_truth);
    if (hidden === undefined) throw new Invalid('ground_truth: it is not a number');
    const episode = new Hunt(hidden);
    return { episode, turn: turn(episode.hint(user_prompt)) };
  },

  step(episode, { number }) {
    episode.guesses.push(number);
    if (Math.abs(number - episode.hidden) < 1e-9) {
      return turn(episode.hint('That is it.'), { reward: 1 / episode.guesses.length, done: true });
    }
    if (episode.guesses.length === GUESSES_MAX) {
      return turn(episode.hint('That was the last guess.'), { reward: 0, done: true });
    }
    return turn(episode.hint(number < episode.hidden ? 'The number is higher.' : 'The number is lower.'));
  },

  state: ({ guesses }) => ({ guesses }),

  splits: Object.entries(SPLITS).map(([name, rows]) => ({ name, tasks: rows.length })),

  // The label stays here: a reset finds it by the task's name.
  task: (split, index) => ({ split, index, user_prompt: rowOf(split, index).user_prompt }),
});
