import { parse, parseDocument, stringify } from 'yaml';
export default () => {
  const document = parseDocument('# note\na: 1 # one\nb:\n  - x\n');
  document.set('c', 3);
  return [parse('x: &a [1, 2]\ny: *a'), document.toString(), stringify({ k: ['v', { w: null }] }), parseDocument('a: [').errors.map((error) => error.code)];
};
