// JSON Schemas of settings and of tools' parameters: given as a schema or by a library of the Standard Schema kind.

import { Failed, Invalid } from './errors.js';
import { isObject, shown } from './check.js';

/** Returns the JSON Schema and a function that reads a value of it, or throws an `Invalid` with the location. */
export function schemaOf(given, what) {
  if (given === undefined) return { json: { type: 'object', properties: {} }, read: (value) => value };
  const standard = given?.['~standard'];
  if (standard !== undefined) return fromStandard(given, standard, what);
  if (!isObject(given)) throw new Invalid(`${what} has to be a JSON Schema or a schema of a library, not ${shown(given)}`);
  return { json: given, read: (value) => readAs(given, value) };
}

function fromStandard(given, standard, what) {
  const target = { target: 'draft-2020-12' };
  const json =
    standard.jsonSchema?.input?.(target) ??
    (typeof given.toJSONSchema === 'function' ? given.toJSONSchema({ io: 'input' }) : undefined) ??
    (typeof given.toJsonSchema === 'function' ? given.toJsonSchema() : undefined);
  if (!isObject(json)) {
    throw new Failed(`${what}: a schema of '${standard.vendor}' does not give its JSON Schema; give the JSON Schema itself`);
  }
  const { $schema: _, ...schema } = json;
  return {
    json: schema,
    read: (value) => {
      const result = standard.validate(value);
      if (typeof result?.then === 'function') throw new Failed(`${what}: asynchronous schemas are not supported`);
      if (!result.issues) return result.value;
      const issues = result.issues.map(({ path, message }) => {
        const place = (path ?? []).map((part) => String(part?.key ?? part)).join('.');
        return place === '' ? message : `field \`${place}\`: ${message}`;
      });
      throw new Mismatch(issues.join('; '));
    },
  };
}

/** A value does not fit its schema. The text has the location and the reason. */
export class Mismatch extends Error {
  within(place) {
    return new Mismatch(/^[[.]/.test(this.message) ? `${place}${this.message}` : `${place}: ${this.message}`);
  }
}

const KINDS = {
  string: { fits: (value) => typeof value === 'string', name: 'a string' },
  number: { fits: (value) => typeof value === 'number', name: 'a number' },
  integer: { fits: (value) => Number.isInteger(value), name: 'a whole number' },
  boolean: { fits: (value) => typeof value === 'boolean', name: 'true or false' },
  null: { fits: (value) => value === null, name: 'null' },
  array: { fits: Array.isArray, name: 'an array' },
  object: { fits: isObject, name: 'an object' },
};

function check(schema, value) {
  const types = Array.isArray(schema.type) ? schema.type : schema.type === undefined ? [] : [schema.type];
  const kinds = types.map((type) => KINDS[type]).filter((kind) => kind !== undefined);
  if (kinds.length > 0 && !kinds.some((kind) => kind.fits(value))) {
    throw new Mismatch(`${shown(value)} is not ${kinds.map((kind) => kind.name).join(' or ')}`);
  }
  const choices = schema.enum ?? ('const' in schema ? [schema.const] : undefined);
  if (choices !== undefined && !choices.some((choice) => JSON.stringify(choice) === JSON.stringify(value))) {
    throw new Mismatch(`${shown(value)} is none of ${choices.map(shown).join(', ')}`);
  }
  const bounds = [
    ['minimum', (limit) => value >= limit, 'at least'],
    ['maximum', (limit) => value <= limit, 'at most'],
    ['exclusiveMinimum', (limit) => value > limit, 'greater than'],
    ['exclusiveMaximum', (limit) => value < limit, 'less than'],
  ];
  for (const [keyword, holds, words] of bounds) {
    if (typeof value === 'number' && typeof schema[keyword] === 'number' && !holds(schema[keyword])) {
      throw new Mismatch(`${shown(value)} is not ${words} ${schema[keyword]}`);
    }
  }
}

/** Returns the value with the defaults of missing fields. Checks types, choices, bounds, and required and unknown
 * fields. Other keywords are for the model and for the host. */
function readAs(schema, value) {
  if (!isObject(schema)) return value;
  check(schema, value);
  if (Array.isArray(value) && isObject(schema.items)) {
    return value.map((item, index) => readWithin(`[${index}]`, schema.items, item));
  }
  if (!isObject(value) || !isObject(schema.properties)) return value;
  const read = { ...value };
  for (const [name, field] of Object.entries(schema.properties)) {
    if (Object.hasOwn(value, name)) read[name] = readWithin(`field \`${name}\``, field, value[name]);
    else if (isObject(field) && 'default' in field) read[name] = field.default;
  }
  if (schema.additionalProperties === false) {
    const names = Object.keys(schema.properties);
    const unknown = Object.keys(value).find((name) => !names.includes(name));
    if (unknown !== undefined) {
      const expected = names.length === 0 ? 'there are none' : `expected ${names.map((name) => `\`${name}\``).join(', ')}`;
      throw new Mismatch(`unknown field \`${unknown}\`, ${expected}`);
    }
  }
  for (const name of schema.required ?? []) {
    if (!Object.hasOwn(read, name)) throw new Mismatch(`missing field \`${name}\``);
  }
  return read;
}

function readWithin(place, schema, value) {
  try {
    return readAs(schema, value);
  } catch (error) {
    throw error instanceof Mismatch ? error.within(place) : error;
  }
}
