// What of the moment at which a function is built stays in it: `src/prelude/watch.ts` notes what its modules ask for while they run.

import { lines, place } from "./lines.mjs";

const FROZEN = "weir: frozen ";
const END = " :weir";

/** JavaScript for the end of a bundle: no more is noted. */
export const UNWATCHED = "globalThis.__weirWatched?.();\n";

/** The same, and where there is something to warn of, the compilation ends with it. */
export const WATCHED = `{ const asked = globalThis.__weirWatched?.() ?? []; if (asked.length) throw new Error("${FROZEN}" + JSON.stringify(asked) + "${END}"); }\n`;

/** The warnings in what a compilation ended with; undefined where it ended with something else. */
export function frozen(message, map) {
  const found = message.slice(message.indexOf(FROZEN) + FROZEN.length, message.indexOf(END));
  if (!message.includes(FROZEN)) return undefined;
  const table = lines(map);
  const warnings = JSON.parse(found).flatMap(([what, lines]) => {
    const places = lines.map((line) => place(line, table)).filter((found) => found !== undefined);
    // Of packages that are called, the line that calls them; those that are being loaded are called by none.
    const own = places.find(({ name }) => !name.includes("node_modules/"));
    return own === undefined ? [] : [{ what, ...own }];
  }).map(
    ({ what, name, line }) => `${name}:${line}: ${what} is called when the function is built, and every call gets what it gave then; a handler can call it anew`,
  );
  return [...new Set(warnings)];
}
