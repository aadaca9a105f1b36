// Compresses the files of `vite build` into `dist/`, and lists them in `dist/files.tsv` for
// `rust/build.rs`: path, content type and SHA-256. Unchanged files keep their time, so that Cargo
// does not compile the node again.
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { gzipSync } from 'node:zlib';

const PACKED_BYTES_MAX = 300_000;
const UNPACKED_BYTES_MAX = 4 * 1024 * 1024;
const TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};
const KEPT = new Set(['.gitignore', 'files.tsv']);

const files = (folder) =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(folder.length + 1))
    .sort();

const read = (path) => {
  try {
    return readFileSync(path);
  } catch {
    return undefined;
  }
};

const write = (path, content) => {
  if (read(path)?.equals(content)) return;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
};

let list = '';
let total = 0;
const packed = new Set();
for (const path of files('build')) {
  const type = TYPES[extname(path)];
  if (type === undefined) throw new Error(`build/${path} has no content type in scripts/pack.mjs`);
  const content = readFileSync(join('build', path));
  if (content.length > UNPACKED_BYTES_MAX) throw new Error(`build/${path} has ${content.length} bytes`);
  const gzip = gzipSync(content, { level: 9 });
  total += gzip.length;
  packed.add(`${path}.gz`);
  write(join('dist', `${path}.gz`), gzip);
  list += `${path}\t${type}\t${createHash('sha256').update(content).digest('hex')}\n`;
}
if (total > PACKED_BYTES_MAX) {
  throw new Error(`the dashboard has ${total} compressed bytes, and may have ${PACKED_BYTES_MAX}`);
}
for (const path of files('dist')) {
  if (!packed.has(path) && !KEPT.has(path)) rmSync(join('dist', path));
}
write(join('dist', 'files.tsv'), Buffer.from(list));
console.log(`${total} compressed bytes of at most ${PACKED_BYTES_MAX}`);
