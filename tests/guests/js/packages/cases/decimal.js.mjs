import { Decimal } from 'decimal.js';
export default () => [new Decimal('0.1').plus('0.2').toString(), new Decimal(2).sqrt().toString(), Decimal.set({ precision: 40 }) && new Decimal(1).div(3).toString(), new Decimal('1e500').toFixed(0).length, Decimal.acos(-1).toString()];
