import { applyPatch, createPatch, diffLines, diffWords } from 'diff';
export default () => {
  const patch = createPatch('f', 'a\nb\nc\n', 'a\nB\nc\n');
  return [diffWords('the old cat', 'the new cat'), diffLines('a\nb\n', 'a\nc\n'), patch, applyPatch('a\nb\nc\n', patch)];
};
