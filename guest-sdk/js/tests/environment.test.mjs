// Environments under Node.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { defineEnvironment, defineSettings, Invalid, tool, ToolError, turn } from 'rollout-sdk';
import { play, taskOf } from 'rollout-sdk/testing';

const number = { type: 'object', properties: { number: { type: 'number' } }, required: ['number'], additionalProperties: false };

function sum(more = {}) {
  return defineEnvironment({
    name: 'sum',
    description: 'Adds.',
    observation: { type: 'object', properties: { total: { type: 'number' } }, required: ['total'] },
    action: number,
    reset: ({ seed = 0 }) => ({ episode: { total: seed }, turn: { total: seed } }),
    step(episode, { number }) {
      episode.total += number;
      return turn({ total: episode.total }, { reward: 0.5, metadata: { added: number } });
    },
    tools: [
      tool({
        name: 'double',
        description: 'Doubles the total.',
        execute: async (_, episode) => turn((episode.total *= 2), { done: true }),
      }),
    ],
    state: (episode) => ({ ...episode }),
    ...more,
  });
}

test('an episode keeps its state between actions and tools', async () => {
  const episode = await play({ environment: sum() }, { seed: 3 });
  const other = await play({ environment: sum() });

  const added = await episode.step({ number: 4 });
  const doubled = await episode.call('double');

  assert.deepEqual(episode.first, { observation: { total: 3 }, reward: undefined, done: false, metadata: {} });
  assert.deepEqual(added, { observation: { total: 7 }, reward: 0.5, done: false, metadata: { added: 4 } });
  assert.deepEqual([doubled.observation, doubled.done], [14, true]);
  assert.deepEqual([await episode.state(), await other.state()], [{ total: 14 }, { total: 0 }]);
});

test('episodes of one environment are apart', async () => {
  const plugin = { environment: sum() };
  const [one, other] = await Promise.all([play(plugin, { seed: 1 }), play(plugin, { seed: 2 })]);

  await one.step({ number: 10 });

  assert.deepEqual([await one.state(), await other.state()], [{ total: 11 }, { total: 2 }]);
});

test('an action that does not fit is invalid, and the episode goes on', async () => {
  const episode = await play({ environment: sum() });
  const refused = [
    [() => episode.step({ number: 'x' }), 'the action: field `number`: "x" is not a number'],
    [() => episode.step({}), 'the action: missing field `number`'],
    [() => episode.step({ number: 1, other: 2 }), 'the action: unknown field `other`, expected `number`'],
    [() => episode.step([1]), 'the action: not a JSON object'],
    [() => episode.call('triple'), "there is no tool 'triple' here; there are: double"],
    [() => episode.call('double', [1]), 'the arguments: not a JSON object'],
  ];
  for (const [act, reason] of refused) await assert.rejects(act, { kind: 'invalid', reason });

  assert.deepEqual((await episode.step({ number: 1 })).observation, { total: 1 });
});

test('a text is an observation, and settings, arguments and tasks are read', async () => {
  const settings = defineSettings({ type: 'object', properties: { hint: { type: 'string', default: 'Guess.' } } });
  const environment = defineEnvironment({
    name: 'hunt',
    description: 'Guess.',
    settings,
    arguments: { type: 'object', properties: { hidden: { type: 'integer' }, most: { type: 'integer', default: 9 } }, required: ['hidden'] },
    reset: ({ arguments: { hidden, most }, config }) => ({ episode: { hidden }, turn: `${config.hint} At most ${most}.` }),
    tools: [
      tool({
        name: 'guess',
        parameters: number,
        execute({ number }, { hidden }) {
          if (number > 9) throw new ToolError('too large');
          return number === hidden ? turn('Found.', { reward: true, done: true }) : 'No.';
        },
      }),
    ],
    splits: [{ name: 'all', kind: 'test', tasks: 1 }],
    task(split, index) {
      if (index > 0) throw new Invalid(`there is no task ${index}`);
      return { hidden: 7 };
    },
  });
  const plugin = { environment, settings };
  const episode = await play(plugin, { arguments: await taskOf(plugin, 'all', 0), config: { hint: 'Try.' } });

  assert.deepEqual(episode.first.observation, { text: 'Try. At most 9.' });
  assert.equal((await episode.call('guess', { number: 1 })).observation, 'No.');
  await assert.rejects(episode.call('guess', { number: 10 }), { kind: 'failed', reason: /^too large/ });
  assert.deepEqual(await episode.call('guess', { number: 7 }), { observation: 'Found.', reward: 1, done: true, metadata: {} });
  await assert.rejects(play(plugin, { arguments: { hidden: 'x' } }), { kind: 'invalid', reason: /^the arguments of the reset: field `hidden`: "x" is not a whole number/ });
  await assert.rejects(taskOf(plugin, 'all', 1), { kind: 'invalid', reason: /^there is no task 1/ });
});

test('results of the wrong type are failures that name the function', async () => {
  const check = async (more, act, reason) => {
    const played = play({ environment: sum(more) }).then(act);
    await assert.rejects(played, { kind: 'failed', reason });
  };
  const step = (result) => [{ step: () => result }, (episode) => episode.step({ number: 1 })];
  const reset = (result) => [{ reset: () => result }, () => {}];

  await check(...step(3), /^`step` returned 3 as its observation; return an object or a text, alone or in turn/);
  await check(...step(undefined), /^`step` returned undefined as its observation/);
  await check(...step({ sum: 3 }), /^the observation of `step` does not fit its schema, `observation` of the environment: missing field `total`/);
  await check(...step(turn({ total: 1 }, { done: 'yes' })), /^`done` of `step` has to be true or false, not "yes"/);
  await check(...step(turn({ total: 1 }, { metadata: [1] })), /^the metadata of `step` has to be an object/);
  await check(...reset({ total: 1 }), /^`reset` returned \{"total":1\}; return \{ episode, turn \}/);
  await check(...reset(undefined), /^`reset` returned undefined/);
  await check({ state: () => [1] }, (episode) => episode.state(), /^`state` returned \[1\]; return an object/);
  const reward = play({ environment: sum({ step: () => turn({ total: 1 }, { reward: 'much' }) }) });
  await assert.rejects(reward.then((episode) => episode.step({ number: 1 })), { kind: 'invalid', reason: /^the reward of `step` has to be a number, not "much"/ });
});

test('a definition that cannot be played is refused where it is made', () => {
  const check = (more, message) => assert.throws(() => sum(more), { name: 'Invalid', message });

  check({ name: undefined }, /^the name of an environment has to be a string/);
  check({ reset: undefined }, /^reset of an environment has to be a function/);
  check({ step: undefined }, /^an environment that takes actions has both `action`, their schema, and `step`/);
  check({ action: undefined, step: undefined, tools: [] }, /^an environment needs `tools`, or `action` and `step`/);
  check({ action: { type: 'number' } }, /^the schema of an action has to be one of an object/);
  check({ tools: [() => 1] }, /^tools\[0\] has to be made by tool\(…\), not a function/);
  check({ tools: [tool({ name: 'a', execute: () => 1 }), tool({ name: 'a', execute: () => 1 })] }, /^tools\[1\]: there is another tool `a`/);
  check({ splits: [{ name: 'train', tasks: 2 }] }, /^task of an environment with splits has to be a function/);
  check({ splits: [{ name: 'all', tasks: 2 }], task: () => ({}) }, /^the split 'all' needs a kind, train, validation, test: \{ name: 'all', tasks: 2, kind: 'test' \}/);
  check({ splits: [{ name: 'train', tasks: -1 }], task: () => ({}) }, /^splits\[0\]\.tasks has to be the number of tasks, not -1/);
});
