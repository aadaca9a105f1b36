// The lines of a function's sources, from the source map of its bundle.

/** JavaScript that gives the bundle a table, by which the SDK names lines of the sources in what it logs. */
export function table(map) {
  // As one string, which every instance has in its memory and only the log of an exception reads.
  return `globalThis.__weirLines = ${JSON.stringify(JSON.stringify(lines(map)))};\n`;
}

/** The source and the line in it that a line of the bundle is from. */
export function place(line, { names, runs }) {
  const run = runs.findLast(([first]) => first <= line);
  return run === undefined ? undefined : { name: names[run[1]], line: run[2] + line - run[0] };
}

/** Runs of lines that follow each other in a source as in the bundle: the first one's line in the bundle, its source, and its line there. */
export function lines({ sources, mappings }) {
  const names = sources.map((source) => source.replace(/^(\.\.?\/)+/, ""));
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
  return { names, runs };
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
