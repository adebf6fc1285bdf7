// The SDK's `Promise` beside that of the platform: node --test guest-sdk/js/tests

import assert from 'node:assert/strict';
import { test } from 'node:test';

const Platform = globalThis.Promise;
globalThis.__cqjs = {};
const platformMicrotask = globalThis.queueMicrotask;
const { drain, stateOf, takeUnhandled } = await import('../src/runtime/promise.js');
const Ours = globalThis.Promise;
globalThis.Promise = Platform;
globalThis.queueMicrotask = platformMicrotask;
delete globalThis.__cqjs;

/** Programs that log in the order in which jobs run. */
const programs = {
  chains: (P, log) => {
    P.resolve(1).then((value) => log(value)).then(() => log('a'));
    P.resolve(2).then((value) => log(value)).then(() => log('b'));
    new P((resolve) => resolve(P.resolve(3))).then(log);
  },
  thenables: (P, log) => {
    P.resolve({ then: (resolve) => resolve('then') }).then(log);
    P.resolve().then(() => ({ then: (_, reject) => reject('no') })).catch((error) => log(`caught ${error}`));
    P.resolve({ get then() { throw 'getter'; } }).catch((error) => log(`caught ${error}`));
  },
  errors: (P, log) => {
    new P(() => { throw 'thrown'; }).catch((error) => { log(error); return 'after'; }).then(log);
    P.reject('x').finally(() => log('finally')).catch(log);
    P.resolve('kept').finally(() => 'dropped').then(log);
    P.resolve().then(() => { throw 'late'; }).then(() => log('never'), log);
  },
  combinators: (P, log) => {
    P.all([1, P.resolve(2), { then: (resolve) => resolve(3) }]).then((values) => log(JSON.stringify(values)));
    P.all([1, P.reject('first'), P.reject('second')]).catch(log);
    P.allSettled([1, P.reject('no')]).then((values) => log(JSON.stringify(values)));
    P.any([P.reject('a'), P.resolve('b'), 'c']).then(log);
    P.any([P.reject('a'), P.reject('b')]).catch((error) => log(`${error.constructor.name} ${error.errors}`));
    P.race([new P(() => {}), P.resolve('won'), P.reject('lost')]).then(log);
    P.all([]).then((values) => log(`empty ${values.length}`));
  },
  classes: (P, log) => {
    class Sub extends P {}
    log(Sub.resolve(1).then(() => {}) instanceof Sub);
    log(P.resolve(P.resolve(1)) instanceof P);
    log(Object.prototype.toString.call(P.resolve()));
  },
};

for (const [name, program] of Object.entries(programs)) {
  test(`${name} run as on the platform`, async () => {
    const run = async (P, settle) => {
      const lines = [];
      program(P, (line) => lines.push(String(line)));
      await settle();
      return lines;
    };
    const theirs = await run(Platform, () => new Platform((resolve) => setTimeout(resolve, 5)));
    const ours = await run(Ours, drain);
    takeUnhandled();
    assert.deepEqual([...ours].sort(), [...theirs].sort());
    // The order of independent chains of combinators is not specified by what programs rely on.
    if (name !== 'combinators') assert.deepEqual(ours, theirs);
  });
}

test('a promise is settled by functions beside it', () => {
  const { promise, resolve } = Ours.withResolvers();
  resolve('value');
  drain();
  assert.deepEqual(stateOf(promise), { status: 'fulfilled', value: 'value' });
});

test('rejections without a handler are found', () => {
  Ours.reject('lost');
  Ours.reject('handled').catch(() => {});
  drain();
  assert.deepEqual(takeUnhandled(), ['lost']);
  assert.deepEqual(takeUnhandled(), []);
});

test('a long queue of jobs runs in order', () => {
  const seen = [];
  let promise = Ours.resolve();
  for (let index = 0; index < 5000; index += 1) promise = promise.then(() => seen.push(index));
  drain();
  assert.equal(seen.length, 5000);
  assert.deepEqual(seen, [...seen].sort((a, b) => a - b));
  assert.equal(stateOf(promise).status, 'fulfilled');
});
