import { z } from 'zod';
export default () => {
  const schema = z.object({ name: z.string().min(2), age: z.coerce.number().int(), tags: z.array(z.enum(['a', 'b'])).default([]) });
  const wrong = schema.safeParse({ name: 'x', age: 'old', tags: ['c'] });
  return [schema.parse({ name: 'Ann', age: '41' }), wrong.error.issues, z.toJSONSchema(schema)];
};
