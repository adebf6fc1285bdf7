import { parse, tokenizer } from 'acorn';
export default () => {
  let message = '';
  try {
    parse('let = ;', { ecmaVersion: 2024, sourceType: 'module' });
  } catch (error) {
    message = [error.message, error.pos];
  }
  const tree = parse('export const f = async (a, ...b) => a ?? b[0]?.c;', { ecmaVersion: 2024, sourceType: 'module' });
  return [tree, [...tokenizer('a**=1n', { ecmaVersion: 2024 })].map((token) => token.type.label), message];
};
