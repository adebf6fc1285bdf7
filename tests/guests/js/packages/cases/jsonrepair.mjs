import { jsonrepair } from 'jsonrepair';
export default () => [jsonrepair("{name: 'John', list: [1, 2,], }"), jsonrepair('{"a": 2, "b": "unfinished'), jsonrepair('```json\n{"a": true}\n```')];
