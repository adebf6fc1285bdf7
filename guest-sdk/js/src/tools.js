// Tools for other plugins.

import { asList, shown } from './check.js';
import { Invalid } from './errors.js';
import { describe, readConfig, runBare } from './host.js';
import { dump } from './json.js';
import { part } from './part.js';
import { explain, asResultText } from './tool.js';

async function toolsOf(given, settings) {
  const found = typeof given === 'function' ? await given(readConfig(settings)) : given;
  return asList(found, 'the tools').map((each, index) => {
    if (typeof each?.run !== 'function') throw new Invalid(`tools[${index}] has to be made by tool(…), not ${shown(each)}`);
    return each;
  });
}

/** Defines a component with tools for other plugins. */
export function defineTools(tools, { settings } = {}) {
  return part('tools', {
    describe: () =>
      runBare(async () => (await toolsOf(tools, settings)).map((each) => dump(each.schema, `tool \`${each.name}\``))),
    call: (name, given) => {
      try {
        return runBare(async () => {
          const found = (await toolsOf(tools, settings)).find((each) => each.name === name);
          if (found === undefined) throw new Invalid(`there is no tool '${name}' here`);
          return asResultText(await found.run(given)).toWellFormed();
        });
      } catch (error) {
        throw (error instanceof Error ? explain(error) : describe(error)).toWellFormed();
      }
    },
  });
}
