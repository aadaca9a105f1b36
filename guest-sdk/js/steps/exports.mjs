// What a function exports: a bundle without it is refused, and one that exports something else ends its compilation, since either would trap at
// each call.

/** The kinds of functions: what each exports, what of the SDK makes that, and the method that it then has. */
const KINDS = {
  http: { name: "handler", by: "httpFunction", method: "handle" },
  tensor: { name: "stage", by: "tensorFunction", method: "run" },
};
const example = ({ name, by }) => `export const ${name} = ${by}(...);`;

/** Which kind of function exports `names`. */
export function checked(names, fail) {
  const found = Object.keys(KINDS).filter((kind) => names.includes(KINDS[kind].name));
  if (found.length === 1) return found[0];
  const what = found.length === 2 ? "both a handler and a stage" : names.length === 0 ? "nothing" : names.join(", ");
  return fail(`the function exports ${what}, and needs one of: ${Object.values(KINDS).map(example).join(" ")}`);
}

/** JavaScript that throws where the export of `bundle` is not what the SDK makes. */
export function kindOf(kind, bundle) {
  const { name, by, method } = KINDS[kind];
  // The name that the export has within the bundle, which ends with what it exports.
  const found = new RegExp(`[{,]\\s*(?:([\\w$]+) as )?${name}\\s*[,}]`).exec(bundle.slice(bundle.lastIndexOf("export {")));
  const why = JSON.stringify(`the export \`${name}\` is not what ${by} makes: ${example(KINDS[kind])}`);
  return `if (typeof ${found?.[1] ?? name}?.${method} !== "function") throw new TypeError(${why});`;
}
