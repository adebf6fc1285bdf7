import { applyPatches, enablePatches, produce, produceWithPatches } from 'immer';
export default () => {
  enablePatches();
  const base = { list: [{ done: false }], kept: {} };
  const [next, patches] = produceWithPatches(base, (draft) => { draft.list[0].done = true; draft.list.push({ done: false }); });
  return [next, patches, next.kept === base.kept, applyPatches(base, patches), Object.isFrozen(produce(base, (draft) => { draft.x = 1; }))];
};
