import * as R from 'ramda';
export default () => [R.pipe(R.filter((n) => n % 2 === 1), R.map(R.multiply(2)), R.sum)([1, 2, 3]), R.path(['a', 0, 'b'], { a: [{ b: 1 }] }), R.assocPath(['x', 'y'], 1, {}), R.uniqBy(Math.abs, [1, -1, 2]), R.curry((a, b, c) => a + b + c)(1)(2, 3)];
