// Builds a component from a function: `node build.mjs FUNCTION COMPONENT [WIT]`, in a folder whose
// node_modules has esbuild and componentize-qjs. The function's export determines its kind, and its
// calls determine the component's imports.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, parse, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { checked, kindOf } from "./steps/exports.mjs";
import { bound } from "./steps/late.mjs";
import { lines, place, table } from "./steps/lines.mjs";
import { frozen, UNWATCHED, WATCHED } from "./steps/watch.mjs";
import { world } from "./steps/world.mjs";

/**
 * Modules that wrap the node's interfaces. Importing them has no side effects, so that the
 * bundle drops unused interfaces.
 */
const NODE = {
  name: "node",
  setup: (build) => build.onResolve({ filter: /^(weir|wasi|late):/ }, ({ path }) => ({ path, external: true, sideEffects: false })),
};

const [source, component, wit = "wit"] = process.argv.slice(2);
if (component === undefined) fail("how to build a function: node build.mjs FUNCTION.ts COMPONENT.wasm [WIT]");
const require = createRequire(resolve("package.json"));
const bundle = join("build", `${parse(source).name}.js`);
let { exports, imports } = await bundled(["url", "fetch", "timers", "abort"]);
const kind = checked(exports, fail);
// Tensor functions are synchronous: packages may name timers, but cannot wait for them.
if (kind === "tensor") ({ imports } = await bundled(["url", "fetch"]));
const text = readFileSync(bundle, "utf8");
const map = JSON.parse(readFileSync(`${bundle}.map`, "utf8"));
writeFileSync(bundle, [text, kindOf(kind, text), table(map)].join("\n"));
writeFileSync(component, bound(await compiled()));

/**
 * Bundles the function and all its imports into one file, with a source map next to it. `optional`
 * are the modules of the prelude that are added only to functions that use their names.
 */
async function bundled(optional) {
  const prelude = (name) => fileURLToPath(new URL(`src/prelude/${name}.ts`, import.meta.url));
  const options = {
    entryPoints: [source],
    outfile: bundle,
    bundle: true,
    format: "esm",
    target: "es2022",
    // Error messages contain class names.
    keepNames: true,
    sourcemap: true,
    inject: optional.map(prelude),
    plugins: [NODE],
    // Also resolves packages if this package is a link to a folder outside of the project.
    nodePaths: [dirname(dirname(require.resolve("core-js-pure/package.json")))],
    metafile: true,
    logLevel: "warning",
  };
  // On an error, esbuild has already printed it.
  const { metafile } = await require("esbuild").build(options).catch(() => process.exit(1));
  return Object.values(metafile.outputs).find(({ entryPoint }) => entryPoint !== undefined);
}

/** Compiles the bundle to a component, with the state after its modules have run. */
async function compiled() {
  const { componentize } = require("componentize-qjs");
  const names = [...new Set(imports.map(({ path }) => path))].sort();
  const options = {
    witPath: world(kind, names, wit, "build/wit"),
    world: "function",
    // Tensor functions are synchronous.
    sync: kind === "tensor",
  };
  const jsSource = readFileSync(bundle, "utf8");
  const attempt = (end) => componentize({ ...options, jsSource: jsSource + end });
  const { component } = await attempt(WATCHED)
    .catch((error) => {
      const warnings = frozen(error.message, map);
      if (warnings === undefined) throw error;
      warnings.forEach((warning) => console.error(`warning: ${warning}`));
      return attempt(UNWATCHED);
    })
    .catch((error) => fail(failure(error.message)));
  return component;
}

/** The compiler's error output, without its internals, and with source lines. */
function failure(message) {
  const [, thrown] = /module evaluation: (.*)$/s.exec(message) ?? [];
  if (thrown === undefined) return message;
  const known = lines(map);
  const stack = thrown.trim().replace(/\([^()]*:(\d+):\d+\)/g, (at, line) => {
    const found = place(Number(line), known);
    return found === undefined ? at : `(${found.name}:${found.line})`;
  });
  return `the function's modules run when it is built, and fail: ${stack}`;
}

function fail(why) {
  console.error(why);
  process.exit(1);
}
