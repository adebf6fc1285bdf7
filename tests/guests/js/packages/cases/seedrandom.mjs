import seedrandom from 'seedrandom';
export default () => {
  const random = seedrandom('hello.');
  return [random(), random.int32(), seedrandom.alea('x')(), seedrandom.xor128('x').quick()];
};
