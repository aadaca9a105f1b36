// Warnings about build-time values that stay in the function: `src/prelude/watch.ts` records calls
// of its modules.

import { lines, place } from "./lines.mjs";

const FROZEN = "weir: frozen ";
const END = " :weir";

/** JavaScript at the end of a bundle that stops the recording. */
export const UNWATCHED = "globalThis.__weirWatched?.();\n";

/** Same, and ends the compilation if there are warnings. */
export const WATCHED = `{ const asked = globalThis.__weirWatched?.() ?? []; if (asked.length) throw new Error("${FROZEN}" + JSON.stringify(asked) + "${END}"); }\n`;

/** The warnings in the error of a compilation; undefined for any other error. */
export function frozen(message, map) {
  const found = message.slice(message.indexOf(FROZEN) + FROZEN.length, message.indexOf(END));
  if (!message.includes(FROZEN)) return undefined;
  const table = lines(map);
  const warnings = JSON.parse(found).flatMap(([what, lines]) => {
    const places = lines.map((line) => place(line, table)).filter((found) => found !== undefined);
    // The line that calls a package. Packages that are being loaded have no calling line.
    const own = places.find(({ name }) => !name.includes("node_modules/"));
    return own === undefined ? [] : [{ what, ...own }];
  }).map(
    ({ what, name, line }) => `${name}:${line}: ${what} is called when the function is built, and every call gets what it gave then; a handler can call it anew`,
  );
  return [...new Set(warnings)];
}
