import { BigNumber } from 'bignumber.js';
export default () => [new BigNumber('0.1').plus('0.2').toString(), new BigNumber('123456789012345678901234567890').times(3).toFixed(), new BigNumber(255).toString(16), new BigNumber(10).div(3).decimalPlaces(5).toString()];
