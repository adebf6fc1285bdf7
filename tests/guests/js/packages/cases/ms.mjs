import ms from 'ms';
export default () => [ms('2.5 hrs'), ms('-3 days'), ms(60000), ms(2 * 3600000, { long: true })];
