// Parts of the SDK that need no host: node --test guest-sdk/js/tests

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answerAfter, parseNumber, sameNumber } from '../src/answer.js';
import { dump, dumpMessages, parse } from '../src/json.js';
import { message } from '../src/message.js';
import { schemaOf } from '../src/schema.js';
import { Toolbox, tool } from '../src/tool.js';
import { getRandomValues, random, randomUUID, refresh } from '../src/runtime/random.js';
import { TextDecoder as OurDecoder, TextEncoder as OurEncoder, show } from '../src/runtime/text.js';

test('the answer follows the last marker on its line', () => {
  const cases = [
    ['#### 42', '42'],
    ['#### 1\nno, wait\n####2\nThat is it.', '2'],
    ['####\n 7 \n', '7'],
    ['nothing', undefined],
    ['####   ', undefined],
    ['', undefined],
  ];
  for (const [text, expected] of cases) assert.equal(answerAfter(text, '####'), expected, text);
});

test('numbers are parsed whatever their formatting', () => {
  const cases = [
    ['42', 42],
    [' -4,659 ', -4659],
    ['\u22125', -5],
    ['- 5', -5],
    ['+5', 5],
    ['$1,234.50', 1234.5],
    ['-$3', -3],
    ['1 000 000', 1000000],
    ['**12**.', 12],
    ['42.', 42],
    ['.5', 0.5],
    ['1e3', 1000],
    ...['1, 2', '1,5', '1234,567', '1 2', '1e999', 'inf', 'nan', '42 apples', '--4', '', '.', '-', '1.2.3'].map((text) => [
      text,
      undefined,
    ]),
  ];
  for (const [text, expected] of cases) assert.equal(parseNumber(text), expected, text);
  assert.ok(sameNumber('1,000', '1000.0'));
  assert.ok(sameNumber('0', '-0'));
  assert.ok(!sameNumber('none', 'none'));
  assert.ok(!sameNumber(undefined, '1'));
});

test('a document that is not changed goes back as its text', () => {
  const text = '{"zeta": 12345678901234567890, "x": 1.0}';
  const value = parse(text, 'it');
  assert.equal(dump(value, 'it'), text);
  value.more = true;
  assert.notEqual(dump(value, 'it'), text);
  assert.throws(() => parse('{', 'it'), /^Invalid: it: not valid JSON/);
});

test('lone surrogates are replaced and pairs are kept', () => {
  assert.equal(dump({ a: '\ud83d', b: '\u{1f600}', c: '\\ud83d', d: '\ud83d\ud83d' }, 'it'), '{"a":"\\ufffd","b":"\u{1f600}","c":"\\\\ud83d","d":"\\ufffd\\ufffd"}');
});

test('messages that are none are named by their index', () => {
  assert.throws(() => dumpMessages([{ role: 'user' }, 'x'], 'messages'), /^Invalid: messages\[1\] has to be a message/);
  assert.throws(() => dumpMessages(undefined, 'messages'), /^Invalid: messages has to be a list, not undefined/);
  assert.throws(() => dumpMessages([Promise.resolve()], 'messages'), /is an `await` missing/);
});

test('text and tool calls are read from messages of any shape', () => {
  assert.equal(message.textOf({ role: 'user', content: [{ type: 'text', text: 'a' }, {}, { text: 'b' }] }), 'a\nb');
  assert.equal(message.textOf({ role: 'assistant', content: null }), '');
  const calls = [
    { id: '1', function: { name: 'add', arguments: '{"a": 1}' } },
    { id: '2', function: { name: 'add', arguments: { a: 1 } } },
    { id: '3', function: {} },
    { function: { name: 'now' } },
  ];
  assert.deepEqual(message.toolCallsOf({ role: 'assistant', tool_calls: calls }), [
    { id: '1', name: 'add', arguments: '{"a": 1}' },
    { id: '2', name: 'add', arguments: '{"a":1}' },
    { id: '', name: 'now', arguments: '' },
  ]);
});

test('a value that does not fit its schema is named by its place', () => {
  const { read } = schemaOf(
    {
      type: 'object',
      properties: { a: { type: 'array', items: { type: 'integer' } }, b: { enum: ['x', 'y'] }, c: { default: 3 }, d: { type: 'number', minimum: 1 } },
      required: ['a'],
    },
    'it',
  );
  assert.deepEqual(read({ a: [1] }), { a: [1], c: 3 });
  const check = (value, expected) => assert.throws(() => read(value), { message: expected });
  check({}, 'missing field `a`');
  check({ a: [1, 1.5] }, 'field `a`[1]: 1.5 is not a whole number');
  check({ a: [], b: 'z' }, 'field `b`: "z" is none of "x", "y"');
  check({ a: [], d: 0 }, 'field `d`: 0 is not at least 1');
  check([], '[] is not an object');
});

test('a schema of a library validates and gives its JSON Schema', () => {
  const library = {
    '~standard': {
      version: 1,
      vendor: 'test',
      validate: (value) =>
        typeof value.n === 'number' ? { value: { n: value.n + 1 } } : { issues: [{ message: 'not a number', path: ['n'] }] },
    },
    toJSONSchema: () => ({ $schema: 'x', type: 'object', properties: { n: { type: 'number' } } }),
  };
  const { json, read } = schemaOf(library, 'it');
  assert.deepEqual(json, { type: 'object', properties: { n: { type: 'number' } } });
  assert.deepEqual(read({ n: 1 }), { n: 2 });
  assert.throws(() => read({ n: 'x' }), { message: 'field `n`: not a number' });
  assert.throws(() => schemaOf({ '~standard': { vendor: 'mute' } }, 'it'), /does not give its JSON Schema/);
});

test('mistakes in a call are reported to the model', async () => {
  const add = tool({
    name: 'add',
    parameters: { type: 'object', properties: { a: { type: 'number' } }, required: ['a'] },
    execute: ({ a }) => {
      if (a < 0) throw new Error('too small');
      return { sum: a };
    },
  });
  const box = new Toolbox([add]);
  const call = async (args, name = 'add') => (await box.execute([{ id: '1', name, arguments: args }]))[0].content;
  assert.equal(await call('{"a": 1}'), '{"sum":1}');
  assert.equal(await call('{"a": -1}'), 'error: too small');
  assert.equal(await call('{}'), 'error: the arguments: missing field `a`');
  assert.equal(await call('[1]'), 'error: the arguments: not a JSON object');
  assert.match(await call('{'), /^error: the arguments: not valid JSON: /);
  assert.equal(await call('{}', 'adds'), 'error: there is no tool `adds`; there are: add');
});

test('random numbers are mixed with those of the host after each refresh', () => {
  const draw = () => [random(), random(), randomUUID(), getRandomValues(new Uint8Array(4)).join()];
  refresh();
  const first = draw();
  refresh();
  const second = draw();
  for (const at of first.keys()) assert.notEqual(first[at], second[at]);
  assert.match(first[2], /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  const numbers = Array.from({ length: 10000 }, random);
  const mean = numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
  assert.ok(Math.abs(mean - 0.5) < 0.02 && numbers.every((number) => number >= 0 && number < 1), String(mean));
});

test('bytes are decoded as the platform decodes them', () => {
  const platform = new TextDecoder();
  const ours = new OurDecoder();
  let number = 1;
  const byte = () => {
    number = (Math.imul(number, 1664525) + 1013904223) | 0;
    return number >>> 24;
  };
  const starts = [[0xc2], [0xe0, 0xa0], [0xed, 0xa0], [0xf0, 0x90], [0xf4, 0x90], [0xef, 0xbb, 0xbf], [0xff]];
  for (let round = 0; round < 3000; round += 1) {
    const bytes = Uint8Array.from({ length: 1 + (round % 9) }, byte);
    bytes.set(starts[round % starts.length].slice(0, bytes.length));
    assert.equal(ours.decode(bytes), platform.decode(bytes), [...bytes].join());
  }
  const text = 'caf\u00e9 \u{1f600} \ud83d';
  assert.deepEqual(new OurEncoder().encode(text), new TextEncoder().encode(text));
  const streamed = new OurDecoder();
  const parts = [...new TextEncoder().encode('\u{1f600}')].map((byte) => streamed.decode(Uint8Array.of(byte), { stream: true }));
  assert.equal(parts.join(''), '\u{1f600}');
  assert.throws(() => new OurDecoder('utf-8', { fatal: true }).decode(Uint8Array.of(0xff)), TypeError);
});

test('values are shown in a line', () => {
  const circular = { a: [1, 'x'], m: new Map([[1, new Set([2])]]), f() {}, n: 1n };
  circular.self = circular;
  assert.equal(show(circular), '{a: [1, "x"], m: Map {1 => Set {2}}, f: [function f], n: 1n, self: [circular]}');
  assert.equal(show('text'), 'text');
});
