/** Stack traces with source lines. */

/**
 * Runs of consecutive bundle lines, each with its first bundle line, its source and its first
 * source line. `build.mjs` adds the table to the bundle.
 */
interface Lines {
  names: string[];
  runs: [at: number, source: number, line: number][];
}

const scope = globalThis as { __weirLines?: string };

/**
 * Replaces the positions in `stack`, such as `at fail (/build/function.js:813:9)`, by source
 * names and lines if they are known.
 */
export function sourced(stack: string, table: string | undefined = scope.__weirLines): string {
  if (table === undefined) return stack;
  const lines: Lines = JSON.parse(table);
  return stack.replace(/\([^()]*:(\d+):\d+\)/g, (place, digits) => {
    const at = Number(digits);
    const run = lines.runs.findLast(([first]) => first <= at);
    return run === undefined ? place : `(${lines.names[run[1]]}:${run[2] + at - run[0]})`;
  });
}
