import * as v from 'valibot';
export default () => {
  const schema = v.object({ mail: v.pipe(v.string(), v.email()), n: v.optional(v.pipe(v.number(), v.minValue(1)), 5) });
  return [v.parse(schema, { mail: 'a@b.co' }), v.flatten(v.safeParse(schema, { mail: 'x', n: 0 }).issues)];
};
