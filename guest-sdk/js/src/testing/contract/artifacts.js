// The contract's interface `artifacts`, answered by the host of a test.

import { host } from '../host.js';

export const write = (...args) => host().artifacts.write(...args);
export const read = (...args) => host().artifacts.read(...args);
export const names = (...args) => host().artifacts.names(...args);
