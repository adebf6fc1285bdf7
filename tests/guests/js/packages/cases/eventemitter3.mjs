import { EventEmitter } from 'eventemitter3';
export default () => {
  const emitter = new EventEmitter();
  const heard = [];
  emitter.on('x', (value) => heard.push(value));
  emitter.once('x', (value) => heard.push(-value));
  return [emitter.emit('x', 1), emitter.emit('x', 2), emitter.emit('y'), heard, emitter.listenerCount('x')];
};
