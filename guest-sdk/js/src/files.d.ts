// Types of files that `rollout-host build` bundles as text.

declare module '*.jsonl' {
  const text: string;
  export default text;
}

declare module '*.txt' {
  const text: string;
  export default text;
}
