// The imports of `fetch`, which get their names last. componentize-qjs runs a function's modules when it compiles them, beside a WASI of its own
// whose resources are not those of a `wasi:http` that it does not have. So `wit/late.wit` has what `fetch` calls, and what of `wasi:io` that
// stands on, as `late:http` and `late:io`, which are whole without the engine's WASI; and the component that comes out of it is given the
// standard's names.

/** `component` with its late imports under the names that they have in WASI, which are as long. */
export function bound(component) {
  const IMPORTS = 10;
  const [late, wasi] = [Buffer.from("late:"), Buffer.from("wasi:")];
  // Sections follow a header of eight bytes, each with a byte for its kind and its size, in LEB128, before it.
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
