/** Stacks of exceptions, by lines of the sources. */

/** Runs of lines of the bundle, by the first one's number: the source it is from, and its line there. `build.mjs` adds them to the bundle. */
interface Lines {
  names: string[];
  runs: [at: number, source: number, line: number][];
}

const scope = globalThis as { __weirLines?: string };

/** `stack`, of lines like `at fail (/build/function.js:813:9)`, with the sources' names and lines where they are known. */
export function sourced(stack: string, table: string | undefined = scope.__weirLines): string {
  if (table === undefined) return stack;
  const lines: Lines = JSON.parse(table);
  return stack.replace(/\([^()]*:(\d+):\d+\)/g, (place, digits) => {
    const at = Number(digits);
    const run = lines.runs.findLast(([first]) => first <= at);
    return run === undefined ? place : `(${lines.names[run[1]]}:${run[2] + at - run[0]})`;
  });
}
