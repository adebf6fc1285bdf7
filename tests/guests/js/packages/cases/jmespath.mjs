import jmespath from 'jmespath';
export default () => [jmespath.search({ a: [{ b: 1 }, { b: 3 }] }, 'a[?b > `1`].b'), jmespath.search({ x: ['b', 'a'] }, 'sort(x) | [0]')];
