// One behaviour a prompt, the same as `examples/parity.rs` in the other languages.

import {
  artifact,
  defineGrader,
  defineSettings,
  defineWorkflow,
  Failed,
  type GradedSample,
  type GraderContext,
  Invalid,
  log,
  type Message,
  message,
  RolloutError,
  sameNumber,
  sleep,
  TimedOut,
  tool,
  type WorkflowContext,
} from 'rollout-sdk';

export const settings = defineSettings({
  type: 'object',
  properties: { greeting: { type: 'string', default: 'Hello.' }, turns: { type: 'integer', default: 3 } },
  additionalProperties: false,
});

type Context = WorkflowContext<typeof settings>;

const join = tool({
  name: 'join',
  description: 'Joins words.',
  parameters: {
    type: 'object',
    properties: {
      words: { type: 'array', items: { type: 'string' }, description: 'The words to join.' },
      between: { type: ['string', 'null'], description: 'The separator.' },
      loud: { type: 'boolean' },
    },
    required: ['words', 'loud'],
  },
  execute: ({ words, between, loud }) => {
    if (words.length === 0) throw new Failed('there are no words');
    const text = words.join(between ?? ' ');
    return loud ? text.toUpperCase() : text;
  },
});

export const workflow = defineWorkflow(
  async (ctx: Context) => {
    const asked = message.textOf(ctx.prompt.at(-1));
    if (asked.startsWith('js: ')) return await onlyHere(asked.slice(4), ctx);
    switch (asked) {
      case 'messages': {
        const x = [1.5, -0, 12345678901234567890n, null];
        return [...ctx.prompt, { role: 'assistant', content: 'caf\u00e9 \u{1f600} \0\u2028', x }];
      }
      case 'push':
        return push(ctx);
      case 'names':
        return names(ctx);
      case 'parallel':
        return await parallel(ctx);
      case 'refused':
      case 'no json':
        return await toldByChat(ctx);
      case 'reserved':
        return await toldByChat(ctx, { model: 'mine' });
      case 'budget':
        return await budget(ctx);
      case 'artifacts':
        return artifacts(ctx);
      case 'config':
        return report(ctx, [ctx.config.greeting, ctx.config.turns]);
      case 'context':
        return report(ctx, [ctx.rolloutId, ctx.attempt, ctx.metadata]);
      case 'tools':
        return await tools(ctx);
      case 'log':
        return speak(ctx);
      case 'fail':
        throw new Failed('told to fail');
      case 'refuse':
        throw new Invalid('told to refuse');
      case 'time out':
        throw new TimedOut('told to run out of time');
      case 'unhandled':
        await ctx.sample.chat(ctx.prompt);
        return undefined;
      case 'nothing':
        return undefined;
      default:
        await ctx.agent().run();
        return undefined;
    }
  },
  { settings },
);

/** Returns the prompt with what was found as its reply. */
function report(ctx: Context, found: unknown): Message[] {
  return [...ctx.prompt, message.assistant(JSON.stringify(found))];
}

function push(ctx: Context): void {
  const sample = ctx.openSample();
  sample.push(message.user('not kept'));
  sample.replace(ctx.prompt);
  sample.push(message.assistant('one'), message.toolResult('1', 'two'));
  sample.metric('height', 1.5);
  sample.metric('height', 2.5);
  sample.field('notes', { a: [1, 'b'] });
  sample.push(message.assistant(textOf(() => sample.metric('depth', Number.NaN))));
}

function textOf(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    if (error instanceof RolloutError) return error.message;
    throw error;
  }
  return 'done';
}

function names(ctx: Context): void {
  const first = ctx.openSample('first');
  const told = ['first', 'caf\u00e9', 'second'].map((name) => textOf(() => ctx.openSample(name)));
  first.push(message.assistant(told.join('\n')));
  first.withdraw();
}

async function parallel(ctx: Context): Promise<void> {
  const sample = ctx.openSample();
  const replies = await Promise.all(
    [1, 2, 3].map((number) => sample.chat([message.user(`Calculate ${number} + 10.`)])),
  );
  sample.push(message.assistant(replies.map((reply) => reply.text).join('\n')));
}

async function toldByChat(ctx: Context, params: Record<string, unknown> = {}): Promise<Message[]> {
  try {
    await ctx.sample.chat(ctx.prompt, { params });
  } catch (error) {
    return report(ctx, (error as Error).message);
  }
  return report(ctx, 'done');
}

async function budget(ctx: Context): Promise<void> {
  const agent = ctx.agent();
  for (let number = 1; number < 5; number += 1) {
    const run = await agent.say(message.user(`Calculate ${number} + ${number}.`)).run();
    run.sample.metric('spent', run.stop === 'budget-spent');
  }
}

function artifacts(ctx: Context): Message[] {
  artifact.write('notes/a.txt', 'first');
  artifact.write('notes/a.txt', 'caf\u00e9');
  artifact.write('b.bin', new Uint8Array([0, 255]));
  const told = [textOf(() => artifact.write('../up', 'x')), textOf(() => artifact.read('none'))];
  return report(ctx, [artifact.names(), [...artifact.read('b.bin')], told]);
}

async function tools(ctx: Context): Promise<void> {
  const run = await ctx
    .agent({ instructions: 'Use the tool.', tools: [join], maxTurns: 4, temperature: 0.5 })
    .run();
  run.sample.metric('tool_calls', run.toolCalls);
  run.sample.metric('turns', run.turns);
}

function speak(ctx: Context): Message[] {
  log.debug('one');
  log.info('caf\u00e9');
  log.warn('three');
  log.error('four');
  log.event('step', { n: 1 });
  console.log('printed');
  return report(ctx, 'spoken');
}

/** Behaviours that only a guest in JavaScript has. */
async function onlyHere(what: string, ctx: Context): Promise<Message[] | undefined> {
  const wrong = (value: unknown) => value as never;
  switch (what) {
    case 'timers':
      return report(ctx, await timers());
    case 'abort':
      return report(ctx, await aborted(ctx));
    case 'fetch':
      await fetch('https://example.com/x');
      return undefined;
    case 'deadlock':
      await new Promise(() => {});
      return undefined;
    case 'deep':
      return deep(0) === 0 ? undefined : [];
    case 'thrown':
      return later();
    case 'not an error':
      throw 'a text';
    case 'unhandled':
      void Promise.reject(new Error('nobody looks'));
      return report(ctx, 'done');
    case 'random':
      return report(ctx, [Math.random(), crypto.randomUUID(), new Date().toISOString()]);
    case 'surrogate':
      ctx.sample.push(message.user('\ud83d\\ud83d'), message.assistant('x'.repeat(3) + '\ud83d'));
      log.info('half \ud83d');
      return undefined;
    case 'globals':
      return report(ctx, globals());
    case 'returns a number':
      return wrong(3);
    case 'returns a text':
      return wrong([...ctx.prompt, 'text']);
    case 'wrong metric':
      ctx.sample.metric('height', wrong('tall'));
      return undefined;
    case 'wrong name':
      ctx.openSample(wrong(7));
      return undefined;
    case 'wrong messages':
      await ctx.sample.chat(wrong(ctx.prompt[0]));
      return undefined;
    case 'wrong message':
      ctx.sample.push(wrong(() => 1));
      return undefined;
    case 'wrong tool':
      await ctx.agent({ tools: wrong([{ name: 'x' }]) }).run();
      return undefined;
    case 'wrong field':
      ctx.sample.field('f', wrong(undefined));
      return undefined;
    case 'wrong artifact':
      artifact.write('a', wrong(5));
      return undefined;
    case 'endless microtasks': {
      const again = (): Promise<void> => Promise.resolve().then(again);
      await again();
      return undefined;
    }
    case 'endless timers': {
      const again = (): unknown => setTimeout(again, 0);
      again();
      await new Promise(() => {});
      return undefined;
    }
    case 'regex bomb':
      return report(ctx, /^(a+)+$/.test(`${'a'.repeat(40)}b`));
    case 'memory': {
      const kept: unknown[] = [];
      for (;;) kept.push(new Array(100_000).fill(kept.length));
    }
    case 'frozen':
      for (const each of [Object, Array, Map, String, RegExp]) Object.freeze(each.prototype);
      await ctx.agent({ tools: [join] }).run();
      return undefined;
    case 'replaced':
      // What the SDK uses of the language may be replaced by a program, for itself only.
      Array.prototype.map = () => [];
      JSON.stringify = () => '{}';
      await ctx.agent().run();
      return undefined;
    case 'pollution':
      Object.assign(Object.prototype, { tag: 'failed', val: 'polluted', payload: 1 });
      await ctx.agent().run();
      return undefined;
    case 'pollution by data':
      return report(ctx, await pollutedByData(ctx));
    case 'endless generator': {
      const endless = async function* (): AsyncGenerator<number> {
        for (;;) yield 1;
      };
      for await (const each of endless()) if (each === 2) break;
      return undefined;
    }
    case 'deep and caught':
      for (;;) {
        try {
          deep(0);
        } catch {
          // Goes on.
        }
      }
    case 'deep text':
      return report(ctx, JSON.parse('['.repeat(500_000)));
    case 'deep value': {
      let value: unknown = 1;
      for (let level = 0; level < 500_000; level += 1) value = { value };
      ctx.sample.field('deep', value);
      return undefined;
    }
    case 'long text': {
      let text = 'x';
      for (;;) text += text;
    }
    case 'large buffer':
      return report(ctx, new Uint8Array(2 ** 30).length);
    case 'thenable':
      Object.assign(Object.prototype, { then: () => {} });
      await ctx.agent().run();
      return undefined;
    case 'mark':
      Object.assign(globalThis, { mark: 1 });
      Object.assign(Array.prototype, { mark: 1 });
      return report(ctx, 'marked');
    case 'look':
      return report(ctx, ['mark' in globalThis, 'mark' in []]);
    default:
      throw new Invalid(`there is no behaviour '${what}'`);
  }
}

/** Hands names of prototypes to everything that reads data of the model, the row and the caller. */
async function pollutedByData(ctx: Context): Promise<unknown> {
  const bad = '"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}';
  const called = await join.call({ id: '1', name: 'join', arguments: `{"words": ["a"], "loud": true, ${bad}}` });
  ctx.sample.push(JSON.parse(`{"role": "assistant", "content": "x", ${bad}}`));
  ctx.sample.field('f', JSON.parse(`{${bad}}`));
  const copies = [structuredClone(JSON.parse(`{${bad}}`)), ctx.sample.messages[0], ctx.metadata, ctx.config];
  const polluted = [{}, [], () => 1, ...copies].map((each) => (each as { polluted?: unknown } | null)?.polluted);
  return [called.content, polluted.every((each) => each === undefined), Object.keys(copies[0] as object).length];
}

async function later(): Promise<never> {
  await null;
  throw new RangeError('no such thing');
}

function deep(level: number): number {
  return deep(level + 1) + 1;
}

async function timers(): Promise<unknown> {
  const order: string[] = [];
  const began = Date.now();
  setTimeout(() => order.push('thirty'), 30);
  setTimeout(() => order.push('ten'), 10);
  const cancelled = setTimeout(() => order.push('never'), 5);
  clearTimeout(cancelled);
  let ticks = 0;
  await new Promise<void>((resolve) => {
    const id = setInterval(() => {
      ticks += 1;
      if (ticks === 3) {
        clearInterval(id);
        resolve();
      }
    }, 10);
  });
  await Promise.all([sleep(20), sleep(40)]);
  for await (const each of (async function* () {
    yield 'a';
    yield 'b';
  })()) {
    order.push(each);
  }
  return [order, ticks, Date.now() - began >= 70, await Promise.race([sleep(50), Promise.resolve('first')])];
}

async function aborted(ctx: Context): Promise<unknown> {
  const found: unknown[] = [];
  try {
    await ctx.sample.chat(ctx.prompt, { signal: AbortSignal.timeout(50) });
    found.push('answered');
  } catch (error) {
    found.push((error as Error).name);
  }
  const controller = new AbortController();
  controller.abort(new Error('before'));
  try {
    await sleep(5, { signal: controller.signal });
  } catch (error) {
    found.push((error as Error).message);
  }
  return found;
}

function globals(): unknown {
  const text = new TextDecoder().decode(new TextEncoder().encode('caf\u00e9 \u{1f600}'));
  const given = { a: [1, new Date(0)], m: new Map([[1, 'x']]) };
  const copy = structuredClone(given);
  const target = new EventTarget();
  let heard = 0;
  target.addEventListener('x', () => (heard += 1), { once: true });
  target.dispatchEvent(new Event('x'));
  target.dispatchEvent(new Event('x'));
  return [text, copy.a[0], copy.m.get(1), copy !== given, heard, typeof performance.now(), btoa('a'), typeof process];
}

export const grader = defineGrader((ctx: GraderContext) => {
  for (const sample of ctx.samples) rate(ctx, sample);
});

function rate(ctx: GraderContext, sample: GradedSample): void {
  switch (ctx.label) {
    case 'withdraw':
      sample.reward = 0.5;
      sample.withdraw();
      break;
    case 'none':
      break;
    case 'infinite':
      sample.reward = Number.POSITIVE_INFINITY;
      break;
    case 'observe': {
      const observed = sample.observed();
      sample.reward = 0.25;
      sample.metric('observed', observed.length);
      sample.metric('replied', observed.filter((exchange) => exchange.error === undefined).length);
      break;
    }
    case 'artifact':
      sample.reward = artifact.read('b.bin').length;
      break;
    case 'fail':
      throw new Failed('the grader was told to fail');
    case 'metric':
      sample.reward = sample.metrics.height ?? 0;
      break;
    case undefined:
      sample.reward = 1;
      break;
    default:
      sample.reward = sameNumber(sample.answerAfter('####'), ctx.label);
  }
}

declare const process: unknown;
