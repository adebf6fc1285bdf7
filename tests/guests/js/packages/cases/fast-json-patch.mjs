import patches from 'fast-json-patch';
const { applyPatch, compare, validate } = patches;

export default () => {
  const [from, to] = [{ a: [1, 2], b: 'x' }, { a: [1, 3, 4], c: null }];
  const patch = compare(from, to);
  return [patch, applyPatch(structuredClone(from), patch).newDocument, validate([{ op: 'remove', path: '/none' }], from)?.name];
};
