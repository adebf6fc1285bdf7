import { JSONPath } from 'jsonpath-plus';
export default () => {
  const json = { store: { book: [{ price: 8, title: 'A' }, { price: 12, title: 'B' }] } };
  return [JSONPath({ path: '$.store.book[*].title', json }), JSONPath({ path: '$..book[?(@.price < 10)]', json }), JSONPath({ path: '$..price', json, resultType: 'pointer' })];
};
