// Runs tests of functions under Node.js: `node test.mjs [FOLDER]`, in a folder whose node_modules
// has esbuild. Replaces the node's interfaces by those in src/memory.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

// Defines the symbols that `using` needs and that Node.js 20 lacks.
const BANNER = 'Symbol.dispose ??= Symbol.for("dispose"); Symbol.asyncDispose ??= Symbol.for("asyncDispose");';

const require = createRequire(resolve("package.json"));
const { buildSync } = require("esbuild");
const memory = (file) => fileURLToPath(new URL(`src/memory/${file}.ts`, import.meta.url));
const folder = resolve(process.argv[2] ?? ".");
const tests = readdirSync(folder).filter((name) => /\.test\.[jt]s$/.test(name));
if (tests.length === 0) {
  console.error(`there is no *.test.ts or *.test.js in ${folder}`);
  process.exit(1);
}
const scratch = mkdtempSync(join(tmpdir(), "weir-test-"));
process.on("exit", () => rmSync(scratch, { recursive: true, force: true }));
buildSync({
  entryPoints: tests.map((name) => join(folder, name)),
  bundle: true,
  platform: "node",
  format: "esm",
  target: "node20",
  outdir: scratch,
  outExtension: { ".js": ".mjs" },
  // Also resolves packages if this package is a link to a folder outside of the project.
  nodePaths: [dirname(dirname(require.resolve("core-js-pure/package.json")))],
  banner: { js: BANNER },
  alias: {
    "weir:inference/tensors@0.1.0": memory("tensors"),
    "weir:inference/models@0.1.0": memory("models"),
    "weir:inference/objects@0.1.0": memory("objects"),
    "weir:inference/image@0.1.0": memory("images"),
    "weir:inference/request@0.1.0": memory("wasi"),
    "wasi:http/types@0.3.0": memory("wasi"),
    "late:http/types@0.2.11": memory("outgoing"),
    "late:http/outgoing-handler@0.2.11": memory("outgoing"),
    "wasi:random/random@0.2.12": memory("wasi"),
    "wasi:clocks/monotonic-clock@0.3.0": memory("wasi"),
    "wasi:cli/environment@0.2.12": memory("wasi"),
    "wasi:cli/stdout@0.2.12": memory("wasi"),
    "wasi:cli/stderr@0.2.12": memory("wasi"),
  },
  // Error messages contain class names, as in the component.
  keepNames: true,
  sourcemap: "inline",
  logLevel: "warning",
});
const files = readdirSync(scratch).map((name) => join(scratch, name));
const { status } = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...files], { stdio: "inherit" });
process.exit(status ?? 1);
