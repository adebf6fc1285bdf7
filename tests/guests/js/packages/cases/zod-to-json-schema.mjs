import { zodToJsonSchema } from 'zod-to-json-schema';
import { z } from 'zod/v3';
export default () => zodToJsonSchema(z.object({ a: z.string().email().describe('mail'), b: z.union([z.literal(1), z.null()]).optional() }), 'S');
