// The contract's interface `log`, answered by the host of a test.

import { host } from '../host.js';

export const line = (...args) => host().log.line(...args);
export const event = (...args) => host().log.event(...args);
