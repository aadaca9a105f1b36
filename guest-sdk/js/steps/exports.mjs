// Checks the exports of a function: a bundle without a handler is rejected, and a bundle with an
// invalid handler ends its compilation, since each would trap at every call.

/** Kinds of functions: the export, the SDK function that creates it, and its method. */
const KINDS = {
  http: { name: "handler", by: "httpFunction", method: "handle" },
  tensor: { name: "stage", by: "tensorFunction", method: "run" },
};
const example = ({ name, by }) => `export const ${name} = ${by}(...);`;

/** The kind of a function that exports `names`. */
export function checked(names, fail) {
  const found = Object.keys(KINDS).filter((kind) => names.includes(KINDS[kind].name));
  if (found.length === 1) return found[0];
  const what = found.length === 2 ? "both a handler and a stage" : names.length === 0 ? "nothing" : names.join(", ");
  return fail(`the function exports ${what}, and needs one of: ${Object.values(KINDS).map(example).join(" ")}`);
}

/** JavaScript that throws if the export of `bundle` was not created by the SDK. */
export function kindOf(kind, bundle) {
  const { name, by, method } = KINDS[kind];
  // The name of the export within the bundle. The bundle ends with its exports.
  const found = new RegExp(`[{,]\\s*(?:([\\w$]+) as )?${name}\\s*[,}]`).exec(bundle.slice(bundle.lastIndexOf("export {")));
  const why = JSON.stringify(`the export \`${name}\` is not what ${by} makes: ${example(KINDS[kind])}`);
  return `if (typeof ${found?.[1] ?? name}?.${method} !== "function") throw new TypeError(${why});`;
}
