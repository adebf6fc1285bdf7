// Parts of a plugin, which the entry module exports.

const parts = new WeakMap();

const DEFINED_BY = {
  workflow: 'defineWorkflow',
  agentLoop: 'defineAgentLoop',
  groupGrader: 'defineGroupGrader',
  grader: 'defineGrader',
  environment: 'defineEnvironment',
  settings: 'defineSettings',
  tools: 'defineTools',
};

/** Marks an object with the contract's functions as a part of this kind. */
export function part(kind, functions) {
  parts.set(functions, kind);
  return functions;
}

/** Returns the part that the entry module exports under this name. `build` calls this. */
export function exported(name, value) {
  if (value === null || typeof value !== 'object' || parts.get(value) !== name) {
    throw new TypeError(`the export \`${name}\` is not what ${DEFINED_BY[name]}(…) returns`);
  }
  return value;
}
