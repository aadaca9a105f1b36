// What is left to do with a bundle before it becomes a component: `node finish.mjs BUNDLE.js EXPORT`, from a folder whose node_modules has
// esbuild. A bundle without the export that its world needs is refused, and one whose export is something else ends its compilation: either
// would trap at each call. From the source map that the bundle names, if it does, a table is added by which the SDK names lines of the sources,
// and not of the bundle, in what it logs.

import { appendFileSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

/** What of the SDK makes each export, and the method that it then has. */
const MADE = { handler: { by: "httpFunction", method: "handle" }, stage: { by: "tensorFunction", method: "run" } };

const [bundle, wanted] = process.argv.slice(2);
const require = createRequire(resolve("package.json"));
const { buildSync } = require("esbuild");

const { metafile } = buildSync({ entryPoints: [bundle], outfile: "out.js", format: "esm", write: false, metafile: true });
const { exports } = Object.values(metafile.outputs)[0];
if (!exports.includes(wanted)) {
  const what = exports.length === 0 ? "nothing" : exports.join(", ");
  console.error(`the function exports ${what}, and its world needs \`${wanted}\`${example()}`);
  process.exit(1);
}
// The name that the export has within the bundle, which ends with what it exports.
const text = readFileSync(bundle, "utf8");
const found = new RegExp(`[{,]\\s*(?:([\\w$]+) as )?${wanted}\\s*[,}]`).exec(text.slice(text.lastIndexOf("export {")));
if (MADE[wanted] && found) {
  const why = JSON.stringify(`the export \`${wanted}\` is not what ${MADE[wanted].by} makes${example()}`);
  appendFileSync(bundle, `\nif (typeof ${found[1] ?? wanted}?.${MADE[wanted].method} !== "function") throw new TypeError(${why});\n`);
}
if (text.includes("\n//# sourceMappingURL=")) {
  const { sources, mappings } = JSON.parse(readFileSync(`${bundle}.map`, "utf8"));
  const names = sources.map((source) => source.replace(/^(\.\.?\/)+/, ""));
  // As one string, which every instance has in its memory and only the log of an exception reads.
  const lines = JSON.stringify({ names, runs: runs(mappings) });
  appendFileSync(bundle, `\nglobalThis.__weirLines = ${JSON.stringify(lines)};\n`);
}

/** How the export is written. */
function example() {
  return MADE[wanted] ? `: export const ${wanted} = ${MADE[wanted].by}(...);` : "";
}

/** Runs of lines that follow each other in a source as in the bundle: the first one's line in the bundle, its source, and its line there. */
function runs(mappings) {
  const runs = [];
  let [source, line] = [0, 0];
  mappings.split(";").forEach((segments, at) => {
    let first;
    for (const segment of segments.split(",")) {
      const [, sources = 0, lines = 0] = numbers(segment);
      source += sources;
      line += lines;
      if (segment.length > 1) first ??= [source, line];
    }
    const [wasAt, wasSource, wasLine] = runs.at(-1) ?? [];
    if (first && !(first[0] === wasSource && first[1] + 1 - wasLine === at + 1 - wasAt)) runs.push([at + 1, first[0], first[1] + 1]);
  });
  return runs;
}

/** The numbers in one segment of a source map: digits in base 64, each with a bit for whether more follow, and the sign last. */
function numbers(segment) {
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const numbers = [];
  let [value, shift] = [0, 0];
  for (const digit of segment) {
    const bits = DIGITS.indexOf(digit);
    value |= (bits & 31) << shift;
    shift += 5;
    if (bits & 32) continue;
    numbers.push(value & 1 ? -(value >> 1) : value >> 1);
    [value, shift] = [0, 0];
  }
  return numbers;
}
