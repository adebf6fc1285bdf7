// `node:perf_hooks`.

const clock = globalThis.performance;
export { clock as performance };
export const constants = {};
export const monitorEventLoopDelay = () => ({ enable() {}, disable() {}, min: 0, max: 0, mean: 0 });
export class PerformanceObserver {
  observe() {}
  disconnect() {}
}
export default { constants, monitorEventLoopDelay, performance: clock, PerformanceObserver };
