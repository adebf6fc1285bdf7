// The contract's interface `tools`, answered by the host of a test.

import { host } from '../host.js';

export const available = (...args) => host().tools.available(...args);
export const start = (...args) => host().tools.start(...args);
export const finish = (...args) => host().tools.finish(...args);
