import { customAlphabet, nanoid } from 'nanoid';
export default () => [nanoid().length, /^[ab]{30}$/.test(customAlphabet('ab', 30)()), nanoid() === nanoid()];
