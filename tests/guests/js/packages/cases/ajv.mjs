import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
export default () => {
  const ajv = new Ajv({ allErrors: true });
  addFormats(ajv);
  const check = ajv.compile({ type: 'object', properties: { at: { type: 'string', format: 'date-time' }, n: { type: 'integer', maximum: 5 } }, required: ['at'] });
  return [check({ at: '2026-01-02T03:04:05Z', n: 3 }), check({ n: 7.5 }), check.errors];
};
