// WIT world of a function: its export by kind, and the imports that it uses.

import { cpSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** Export of each kind of function. */
const EXPORTS = { http: "wasi:http/handler@0.3.0", tensor: "weir:inference/stage@0.1.0" };

/**
 * Writes to `folder` the world of a function of `kind` that imports the interfaces `imports`,
 * with the required parts of `wit`. Returns `folder`.
 */
export function world(kind, imports, wit, folder) {
  rmSync(folder, { recursive: true, force: true });
  const deps = join(folder, "deps");
  mkdirSync(deps, { recursive: true });
  const copy = (from, to, filter) => cpSync(from, join(deps, to), { recursive: true, dereference: true, filter });
  copy(join(wit, "deps"), "");
  copy(wit, "weir", (path) => !path.startsWith(join(wit, "deps")));
  copy(fileURLToPath(new URL("../wit/late.wit", import.meta.url)), "late.wit");
  const items = [...imports.map((name) => `import ${name};`), `export ${EXPORTS[kind]};`];
  writeFileSync(join(folder, "function.wit"), ["package weir:function;", "", "world function {", ...items.map((item) => `    ${item}`), "}", ""].join("\n"));
  return folder;
}
