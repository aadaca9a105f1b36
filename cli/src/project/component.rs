//! Detects components by their first bytes, so that common mistakes are reported before the upload.

use crate::error::Problem;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Magic number of WebAssembly, then the version and layer of a component.
const COMPONENT: [u8; 8] = *b"\0asm\x0d\0\x01\0";
const MODULE: [u8; 8] = *b"\0asm\x01\0\0\0";

/// Checks that `path` starts like a component, and returns its length in bytes.
pub(crate) fn check_component(path: &Path) -> Result<u64, Problem> {
    let shown = path.display();
    let unreadable = |error| Problem::new(format!("cannot read the component {shown}")).because(error);
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut start = [0; 8];
    match file.read_exact(&mut start) {
        Ok(()) if start == COMPONENT => Ok(length),
        Ok(()) if start == MODULE => {
            Err(Problem::new(format!("{shown} is a core WebAssembly module and not a component"))
                .hint("build for wasm32-wasip2, or make a component of it with `wasm-tools component new`"))
        }
        _ => Err(Problem::new(format!("{shown} is not a WebAssembly component"))
            .hint("a function is a component: a .wasm file built for wasm32-wasip2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_components_are_accepted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, what) in [
            (&b"\0asm\x01\0\0\0rest"[..], "core WebAssembly module"),
            (b"\0as", "not a WebAssembly component"),
            (b"#!/bin/sh\n", "not a WebAssembly component"),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            assert!(check_component(file.path()).unwrap_err().to_string().contains(what));
        }
        std::fs::write(file.path(), b"\0asm\x0d\0\x01\0rest").unwrap();
        assert_eq!(check_component(file.path()).unwrap(), 12);
    }
}
