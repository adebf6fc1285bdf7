// `rollout-sdk/testing`: plugins under Node against scripted replies.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { artifact, defineAgentLoop, defineGrader, defineSettings, defineWorkflow, hostTools, judge, Failed, log, message, sameNumber, tool } from 'rollout-sdk';
import { hostFetch } from 'rollout-sdk/openai';
import { RolloutFailure, runRollout } from 'rollout-sdk/testing';

const add = tool({
  name: 'add',
  description: 'Adds.',
  parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
  execute: ({ a, b }) => a + b,
});
const settings = defineSettings({ type: 'object', properties: { turns: { type: 'integer', default: 4 } }, additionalProperties: false });
const arithmetic = {
  settings,
  workflow: defineWorkflow(
    async (ctx) => {
      const run = await ctx.agent({ tools: [add], maxTurns: ctx.config.turns }).run();
      run.sample.metric('turns', run.turns);
      artifact.write('notes.txt', run.text);
      log.info(`stopped: ${run.stop}`);
    },
    { settings },
  ),
  grader: defineGrader((ctx) => sameNumber(ctx.sample.answerAfter('####'), ctx.requireLabel())),
};
const replies = [{ toolCalls: [{ name: 'add', arguments: { a: 2, b: 3 } }] }, '#### 5'];

test('a workflow runs with its tools and is graded', async () => {
  const result = await runRollout(arithmetic, { prompt: 'What is 2 + 3?', label: '5', replies });

  assert.equal(result.reward, 1);
  assert.deepEqual(result.samples[0].messages.map(({ role }) => role), ['user', 'assistant', 'tool', 'assistant']);
  assert.equal(result.samples[0].messages[2].content, '5');
  assert.deepEqual(result.samples[0].metrics, { turns: 2 });
  assert.equal(result.requests[0].tools[0].function.name, 'add');
  assert.equal(new TextDecoder().decode(result.artifacts['notes.txt']), '#### 5');
  assert.deepEqual(result.log, [{ level: 'info', text: 'stopped: stopped' }]);
});

test('a wrong answer has a reward of 0, and settings are read', async () => {
  const options = { prompt: 'What is 2 + 3?', label: '6', replies, config: { turns: 1 } };
  const result = await runRollout(arithmetic, options);

  assert.equal(result.reward, 0);
  assert.deepEqual(result.samples[0].metrics, { turns: 1 });
  await assert.rejects(runRollout(arithmetic, { ...options, config: { turns: 'x' } }), { kind: 'invalid', part: 'workflow' });
});

test('a failure names the part, the kind and the cause', async () => {
  const plugin = { workflow: defineWorkflow(() => { throw new Failed('no way'); }) };

  await assert.rejects(runRollout(plugin), (error) => {
    assert.ok(error instanceof RolloutFailure);
    assert.equal(error.message, 'the workflow failed (failed): no way');
    assert.ok(error.cause instanceof Failed);
    return true;
  });
  await assert.rejects(runRollout(arithmetic, { prompt: 'x', replies: [], label: '1' }), /call 1 of the model has no reply in replies/);
  await assert.rejects(runRollout({ workflo: 1 }), /takes the plugin's module/);
});

test('replies are computed, calls run concurrently, and rollouts do not mix', async () => {
  const plugin = {
    workflow: defineWorkflow(async (ctx) => {
      const texts = await Promise.all(['a', 'b'].map((name) => ctx.openSample(name).continueChat([message.user(name)])));
      log.info(texts.map((reply) => reply.text).join());
    }),
  };
  const run = (id) => runRollout(plugin, {
    replies: async ({ messages }, call) => {
      await new Promise((resolve) => setTimeout(resolve, call === 1 ? 20 : 1));
      return `${id}-${messages[0].content}`;
    },
  });

  const [one, two] = await Promise.all([run('1'), run('2')]);

  assert.equal(one.log[0].text, '1-a,1-b');
  assert.equal(two.log[0].text, '2-a,2-b');
  assert.deepEqual(one.samples.map(({ id }) => id), ['a', 'b']);
});

test('a judge, tools of the operator, errors of the model and agent loops', async () => {
  const plugin = {
    workflow: defineWorkflow(async (ctx) => {
      const result = await hostTools.call({ id: '1', name: 'add', arguments: '{"a": 1, "b": 2}' });
      const error = await ctx.sample.continueChat([message.user(result.content)]).catch((reason) => reason);
      ctx.sample.field('error', [error.name, error.kind]);
    }),
    grader: defineGrader(async () => Number((await judge.ask([message.user('rate')])).text)),
  };
  const result = await runRollout(plugin, { replies: [new Error('down')], judgeReplies: ['0.5'], tools: [add] });

  assert.equal(result.reward, 0.5);
  assert.deepEqual(result.samples[0].fields, { error: ['ChatError', 'unavailable'] });
  assert.equal(result.requests[0].messages[0].content, '3');

  const loop = defineAgentLoop({
    name: 'loop',
    tools: [add],
    run: async (ctx) => {
      const reply = await ctx.chat(ctx.request.messages);
      return ctx.complete([...ctx.request.messages, reply.message, ...(await ctx.executeTools(reply))], { reward: 0.25 });
    },
  });
  const looped = await runRollout({ agentLoop: loop }, { prompt: 'add', replies });
  assert.equal(looped.reward, 0.25);
  assert.equal(looped.samples[0].messages.at(-1).content, '5');
});

test('an aborted signal abandons a call', async () => {
  const plugin = {
    workflow: defineWorkflow((ctx) => {
      // Node does not stay alive for AbortSignal.timeout alone.
      const controller = new AbortController();
      setTimeout(() => controller.abort(new DOMException('too late', 'TimeoutError')), 5);
      return ctx.sample.chat([message.user('x')], { signal: controller.signal });
    }),
  };

  await assert.rejects(runRollout(plugin, { replies: () => new Promise(() => {}) }), { kind: 'timed-out' });
});

test('a fetch for openai records one conversation, streams, and refuses other requests', async () => {
  const seen = [];
  const plugin = {
    workflow: defineWorkflow(async (ctx) => {
      const fetch = hostFetch(ctx);
      const post = (body) => fetch('http://model/v1/chat/completions', { method: 'POST', body: JSON.stringify({ model: 'm', ...body }) });
      const first = [message.user('one')];
      const reply = await (await post({ messages: first, temperature: 0.5 })).json();
      seen.push(reply.choices[0].message.content);
      const streamed = await post({ messages: [...first, reply.choices[0].message, message.user('two')], stream: true });
      seen.push((await streamed.text()).split('\n\n').length);
      seen.push((await fetch('http://model/v1/embeddings', { method: 'POST', body: '{}' })).status);
      seen.push((await post({ messages: first, n: 2 })).status);
      const failed = await post({ messages: [message.user('other')] });
      seen.push(failed.status, (await failed.json()).error.code);
    }),
  };

  const { samples, requests } = await runRollout(plugin, { replies: ['1', '2', new Error('down')] });

  assert.deepEqual(seen, ['1', 4, 404, 400, 503, 'unavailable']);
  assert.deepEqual(requests[0].params, { temperature: 0.5 });
  assert.deepEqual(requests[1].messages.map(({ content }) => content), ['one', '1', 'two']);
  // Another conversation replaced the first.
  assert.deepEqual(samples[0].messages, [message.user('other')]);
});
