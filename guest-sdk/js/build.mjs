// Makes a component of a function: `node build.mjs FUNCTION COMPONENT [WIT]`, from a folder whose node_modules has esbuild and
// componentize-qjs. What it exports says which kind it is of, and what it calls, what it imports.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, parse, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { checked, kindOf } from "./steps/exports.mjs";
import { bound } from "./steps/late.mjs";
import { lines, place, table } from "./steps/lines.mjs";
import { frozen, UNWATCHED, WATCHED } from "./steps/watch.mjs";
import { world } from "./steps/world.mjs";

/** What is the node's. Importing it does nothing by itself, so that what is not used is not imported. */
const NODE = {
  name: "node",
  setup: (build) => build.onResolve({ filter: /^(weir|wasi|late):/ }, ({ path }) => ({ path, external: true, sideEffects: false })),
};

const [source, component, wit = "wit"] = process.argv.slice(2);
if (component === undefined) fail("how to build a function: node build.mjs FUNCTION.ts COMPONENT.wasm [WIT]");
const require = createRequire(resolve("package.json"));
const bundle = join("build", `${parse(source).name}.js`);
const { exports, imports } = await bundled();
const kind = checked(exports, fail);
const text = readFileSync(bundle, "utf8");
const map = JSON.parse(readFileSync(`${bundle}.map`, "utf8"));
writeFileSync(bundle, [text, kindOf(kind, text), table(map)].join("\n"));
writeFileSync(component, bound(await compiled()));

/** The function and all that it imports in one file, with its source map beside it. */
async function bundled() {
  const prelude = (name) => fileURLToPath(new URL(`src/prelude/${name}.ts`, import.meta.url));
  const options = {
    entryPoints: [source],
    outfile: bundle,
    bundle: true,
    format: "esm",
    target: "es2022",
    // Messages name classes.
    keepNames: true,
    sourcemap: true,
    // For functions that name what is in them, and no others.
    inject: [prelude("url"), prelude("fetch")],
    plugins: [NODE],
    // Also where this package is a link to a folder outside of the project.
    nodePaths: [dirname(dirname(require.resolve("core-js-pure/package.json")))],
    metafile: true,
    logLevel: "warning",
  };
  // It has said what is wrong.
  const { metafile } = await require("esbuild").build(options).catch(() => process.exit(1));
  return Object.values(metafile.outputs).find(({ entryPoint }) => entryPoint !== undefined);
}

/** The bundle as a component, in the state that it has when its modules have run. */
async function compiled() {
  const { componentize } = require("componentize-qjs");
  const names = [...new Set(imports.map(({ path }) => path))].sort();
  const options = {
    witPath: world(kind, names, wit, "build/wit"),
    world: "function",
    // A tensor function is synchronous.
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

/** What the compiler says, without what only its makers understand, and with lines of the sources. */
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
