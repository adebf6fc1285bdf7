import { delay, from, lastValueFrom, map, mergeMap, of, scan, toArray } from 'rxjs';
export default () => lastValueFrom(from([1, 2, 3]).pipe(mergeMap((each) => of(each).pipe(delay(90 - each * 20))), map((each) => each * 10), scan((sum, each) => sum + each, 0), toArray()));
