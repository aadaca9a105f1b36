// Late binding of the imports of `fetch`. componentize-qjs runs a function's modules during
// compilation, with its own WASI, whose resources are unrelated to a `wasi:http` that it does not
// implement. `wit/late.wit` therefore declares the imports of `fetch`, and the parts of `wasi:io`
// that they need, as `late:http` and `late:io`, which are independent of the engine's WASI. This
// step renames them in the compiled component to the standard names.

/** Renames the late imports of `component` to their WASI names, which have the same length. */
export function bound(component) {
  const IMPORTS = 10;
  const [late, wasi] = [Buffer.from("late:"), Buffer.from("wasi:")];
  // Sections follow a header of eight bytes. Each section starts with a byte for its kind and its
  // size in LEB128.
  for (let at = 8; at < component.length; ) {
    const kind = component[at++];
    let size = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = component[at++];
      size += (byte & 127) * 2 ** shift;
      if (byte < 128) break;
    }
    const section = component.subarray(at, at + size);
    if (kind === IMPORTS) {
      for (let found = section.indexOf(late); found !== -1; found = section.indexOf(late, found)) wasi.copy(section, found);
    }
    at += size;
  }
  return component;
}
