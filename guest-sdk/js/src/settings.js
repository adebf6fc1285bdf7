// The plugin's declaration of its configuration.

import { isObject, shown } from './check.js';
import { Invalid } from './errors.js';
import { dump } from './json.js';
import { part } from './part.js';
import { Mismatch, schemaOf } from './schema.js';

/** Returns the defaults that a schema declares for its fields. */
function defaultsIn(schema) {
  const fields = Object.entries(isObject(schema.properties) ? schema.properties : {});
  const defaults = {};
  for (const [name, field] of fields) {
    if (!isObject(field)) continue;
    if ('default' in field) defaults[name] = field.default;
    else if (isObject(field.properties)) {
      const inner = defaultsIn(field);
      if (Object.keys(inner).length > 0) defaults[name] = inner;
    }
  }
  return defaults;
}

/** Defines the plugin's settings by a JSON Schema or a schema of a library. */
export function defineSettings(given, defaults) {
  const { json, read } = schemaOf(given, 'the schema of the settings');
  if (defaults !== undefined && !isObject(defaults)) {
    throw new Invalid(`the defaults of the settings have to be an object, not ${shown(defaults)}`);
  }
  const declared = defaults ?? defaultsIn(json);
  const texts = { schema: dump(json, 'the schema of the settings'), defaults: dump(declared, 'the defaults') };
  return part('settings', {
    declare: () => texts,
    read: (config) => {
      try {
        return read({ ...declared, ...config });
      } catch (error) {
        throw error instanceof Mismatch ? new Invalid(`config: ${error.message}`) : error;
      }
    },
  });
}
