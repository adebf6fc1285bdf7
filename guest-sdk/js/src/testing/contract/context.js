// The contract's interface `context`, answered by the host of a test.

import { host } from '../host.js';

export const rolloutId = (...args) => host().context.rolloutId(...args);
export const attempt = (...args) => host().context.attempt(...args);
export const config = (...args) => host().context.config(...args);
export const metadata = (...args) => host().context.metadata(...args);
export const timeLeftMs = (...args) => host().context.timeLeftMs(...args);
