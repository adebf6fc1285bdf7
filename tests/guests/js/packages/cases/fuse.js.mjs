import Fuse from 'fuse.js';
export default () => new Fuse([{ t: 'Old Man and the Sea' }, { t: 'Moby Dick' }], { keys: ['t'], includeScore: true }).search('old mn').map(({ item, score }) => [item.t, score.toFixed(6)]);
