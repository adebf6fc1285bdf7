import { create, all } from 'mathjs';
export default () => {
  const math = create(all);
  return [
    math.evaluate('12 / (2.3 + 0.7)'), math.simplify('2x + 3x').toString(), math.derivative('x^2 + 3 x', 'x').toString(),
    math.evaluate('5.08 cm to inch').toString(), math.det([[1, 2], [3, 4]]), math.format(math.fraction(1, 3)), math.evaluate('sqrt(-4)').toString(),
  ];
};
