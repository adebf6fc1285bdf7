import JSON5 from 'json5';
export default () => [JSON5.parse("{a: 0x1F, b: .5, /* c */ d: 'x\\\ny', e: +Infinity > 0}".replace('+Infinity > 0', '1')), JSON5.stringify({ a: ['b'], 'c-d': 1 }, null, 1)];
