// Source lines of a bundle, from its source map.

/** JavaScript that adds a line table to the bundle. The SDK uses it for source lines in the log. */
export function table(map) {
  // A single string: every instance has it in memory, and only a logged exception parses it.
  return `globalThis.__weirLines = ${JSON.stringify(JSON.stringify(lines(map)))};\n`;
}

/** Source and source line of a bundle line. */
export function place(line, { names, runs }) {
  const run = runs.findLast(([first]) => first <= line);
  return run === undefined ? undefined : { name: names[run[1]], line: run[2] + line - run[0] };
}

/**
 * Runs of lines that are consecutive in both source and bundle: first bundle line, source, and
 * first source line.
 */
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

/**
 * The numbers of one segment of a source map: base64 digits with a continuation bit each, and
 * the sign in the lowest bit.
 */
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
