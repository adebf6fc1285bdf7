import semver from 'semver';
export default () => [semver.satisfies('1.2.3', '^1.0.0 || >3'), semver.inc('1.2.3-beta.1', 'prerelease'), ['2.0.0', '1.10.0', '1.9.0-a'].sort(semver.compare), semver.coerce('v2.x').version, semver.maxSatisfying(['1.2.3', '1.4.0'], '~1.2')];
