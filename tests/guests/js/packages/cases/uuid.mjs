import { NIL, parse, stringify, v3, v4, v5, v7, validate, version } from 'uuid';
export default () => [v5('example.com', v5.DNS), v3('example.com', v3.DNS), [...parse(v5('a', v5.URL))], stringify(parse(NIL)), validate(v4()), version(v4()), version(v7())];
