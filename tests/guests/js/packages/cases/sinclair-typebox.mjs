import { Type } from '@sinclair/typebox';
import { TypeCompiler } from '@sinclair/typebox/compiler';
import { Value } from '@sinclair/typebox/value';
export default () => {
  const schema = Type.Object({ x: Type.Number({ minimum: 1 }), tags: Type.Optional(Type.Array(Type.String())) });
  const compiled = TypeCompiler.Compile(schema);
  return [schema, compiled.Check({ x: 2 }), [...compiled.Errors({ x: 0 })].map(({ path, message }) => [path, message]), Value.Create(schema)];
};
