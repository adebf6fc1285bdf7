// The contract's interface `models`, answered by the host of a test.

import { host } from '../host.js';

export const start = (...args) => host().models.start(...args);
export const finish = (...args) => host().models.finish(...args);
