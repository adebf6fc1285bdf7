import _ from 'lodash';
export default () => [
  _.groupBy([6.1, 4.2, 6.3], Math.floor), _.merge({ a: [{ b: 2 }] }, { a: [{ c: 3 }] }), _.template('hi <%= user %>')({ user: 'Ann' }),
  _.orderBy([{ a: 2 }, { a: 1 }], ['a']), _.camelCase('Foo Bar'), _.isEqual({ a: new Map([[1, 2]]) }, { a: new Map([[1, 2]]) }),
];
