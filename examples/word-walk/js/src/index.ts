// An environment of many turns: the model walks through a text word by word, takes notes, and answers how often a letter
// appears. The label goes to the grader only.

import { defineEnvironment, defineGrader, Invalid, message, sameNumber, tool, turn } from 'rollout-sdk';

import text from '../rows.jsonl';

/** Number of steps of an episode. */
const STEPS_MAX = 60;

interface Row {
  user_prompt: string;
  ground_truth: string;
}

const ROWS: Row[] = text.trim().split('\n').map((line) => JSON.parse(line));

const SPLITS: Record<string, Row[]> = { train: ROWS.slice(0, 16), test: ROWS.slice(16) };

/** An episode. */
class Walk {
  readonly notes: (number | null)[];
  place = 0;
  steps = 0;

  constructor(
    readonly letter: string,
    readonly words: string[],
  ) {
    this.notes = words.map(() => null);
  }

  /** Returns a value as the result of a step. */
  turn<T>(value: T) {
    this.steps += 1;
    return turn(value, { done: this.steps >= STEPS_MAX });
  }

  get word() {
    return { place: this.place, word: this.words[this.place], note: this.notes[this.place] };
  }
}

/** Parameters of `note` and `answer`. */
const COUNT = {
  type: 'object',
  properties: { count: { type: 'integer', minimum: 0, description: 'How often the letter appears.' } },
  required: ['count'],
  additionalProperties: false,
} as const;

const go = tool({
  name: 'go',
  description: 'Goes to a word and reads it.',
  parameters: {
    type: 'object',
    properties: { place: { type: 'integer', minimum: 0, description: 'The place of a word, from 0.' } },
    required: ['place'],
    additionalProperties: false,
  },
  execute({ place }, walk: Walk) {
    if (place >= walk.words.length) throw new Invalid(`there is no word ${place}; the text has ${walk.words.length}`);
    walk.place = place;
    return walk.turn(walk.word);
  },
});

const spell = tool({
  name: 'spell',
  description: 'Lists the letters of the current word.',
  execute: (_, walk: Walk) => walk.turn([...walk.word.word]),
});

const note = tool({
  name: 'note',
  description: 'Notes how often the letter is in the current word.',
  parameters: COUNT,
  execute({ count }, walk: Walk) {
    walk.notes[walk.place] = count;
    return walk.turn(walk.word);
  },
});

const sum = tool({
  name: 'sum',
  description: 'Returns the sum of the notes.',
  execute: (_, walk: Walk) => walk.turn(walk.notes.reduce<number>((sum, count) => sum + (count ?? 0), 0)),
});

const answer = tool({
  name: 'answer',
  description: 'Answers, which ends the episode.',
  parameters: COUNT,
  execute({ count }, walk: Walk) {
    walk.steps += 1;
    return turn({ answer: count }, { done: true });
  },
});

export const environment = defineEnvironment({
  name: 'word-walk',
  description: 'Walk through a text word by word, and answer how often a letter appears in it.',

  // The first observation: the task, and the number of words of the text.
  observation: {
    title: 'Opening',
    type: 'object',
    properties: { text: { type: 'string' }, words: { type: 'integer' } },
    required: ['text', 'words'],
  },

  // A row. The host has taken its label out.
  arguments: { type: 'object', properties: { user_prompt: { type: 'string' } }, required: ['user_prompt'] },

  reset(start) {
    // How many times does the letter "p" appear in the text: "to the poles"?
    const parts = start.arguments.user_prompt.split('"');
    if (parts.length !== 5) throw new Invalid('user_prompt: it has no letter and text in quotation marks');
    const [, letter, , text] = parts;
    const words = text.split(/\s+/).filter((word) => word !== '');
    if (words.length === 0) throw new Invalid('user_prompt: its text is empty');
    const task = `How many times does the letter "${letter}" appear in the text? Read its words one by one.`;
    return { episode: new Walk(letter, words), turn: turn({ text: task, words: words.length }) };
  },

  tools: [go, spell, note, sum, answer],

  state: ({ letter, place, notes, steps }) => ({ letter, place, notes, steps }),

  splits: Object.entries(SPLITS).map(([name, rows]) => ({ name, tasks: rows.length })),

  task(split, index) {
    if (!Object.hasOwn(SPLITS, split)) throw new Invalid(`there is no split '${split}'; there are: ${Object.keys(SPLITS).join(', ')}`);
    const row = SPLITS[split][index];
    if (row === undefined) throw new Invalid(`the split '${split}' has no task ${index}; it has ${SPLITS[split].length}`);
    return { user_prompt: row.user_prompt, ground_truth: row.ground_truth };
  },
});

/**
 * Rewards the right answer with 1. An episode without an answer counts as wrong. If the model called several tools at once,
 * results of other tools may follow the answer.
 */
export const grader = defineGrader((ctx) => {
  const label = ctx.requireLabel();
  for (const each of ctx.sample.messages.toReversed()) {
    const found = each.role === 'tool' ? answerIn(message.textOf(each)) : undefined;
    if (found !== undefined) return sameNumber(found, label);
  }
  return 0;
});

/** Returns the answer in the result of a tool, if it has one. */
function answerIn(text: string): string | undefined {
  try {
    const { answer } = JSON.parse(text);
    return typeof answer === 'number' ? String(answer) : undefined;
  } catch {
    return undefined;
  }
}
