import { parse } from 'csv-parse/sync';
export default () => parse('name,age\n"Ann, A.",41\nBob,\n', { columns: true, cast: (value, { column }) => (column === 'age' ? Number(value) : value) });
