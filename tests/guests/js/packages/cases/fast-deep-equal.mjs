import equal from 'fast-deep-equal';
import equalEs6 from 'fast-deep-equal/es6/index.js';
export default () => [equal({ a: [1, { b: /x/ }] }, { a: [1, { b: /x/ }] }), equal([1], [1, 2]), equalEs6(new Map([['a', 1]]), new Map([['a', 1]])), equal(NaN, NaN)];
