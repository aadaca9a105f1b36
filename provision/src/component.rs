//! From core modules, which is what compilers for C and other languages make, to components.

use std::path::Path;
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER as ADAPTER,
};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

/// How a module begins, and where a component differs.
const MODULE: [u8; 8] = *b"\0asm\x01\0\0\0";

/// Why a module cannot be made a component.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// The world is not to be had.
    #[error("the world {world} in {wit}: {why}", wit = .wit.display())]
    World {
        /// Its name.
        world: String,
        /// Where it was looked for.
        wit: std::path::PathBuf,
        /// Why not.
        why: String,
    },
    /// The module is not of that world.
    #[error("the module is not one of {world}: {why}")]
    Module {
        /// Which.
        world: String,
        /// Why not.
        why: String,
    },
}

/// Make a component of `wasm`, a module that imports and exports what `world` in the folder `wit` has, under the names of the canonical ABI
/// and with strings in UTF-8. It may import less, and WASI as of its first preview. None where `wasm` is a component already.
pub fn component_of(wasm: &[u8], wit: &Path, world: &str) -> Result<Option<Vec<u8>>, ComponentError> {
    if !wasm.starts_with(&MODULE) {
        return Ok(None);
    }
    let mut resolve = Resolve::default();
    let found = resolve.push_path(wit).and_then(|(package, _)| resolve.select_world(&[package], Some(world)));
    let id = found.map_err(|error| ComponentError::World {
        world: world.into(),
        wit: wit.into(),
        why: format!("{error:#}"),
    })?;
    let encode = || {
        let mut module = wasm.to_vec();
        wit_component::embed_component_metadata(&mut module, &resolve, id, StringEncoding::UTF8)?;
        ComponentEncoder::default().module(&module)?.adapter(ADAPTER_NAME, ADAPTER)?.validate(true).encode()
    };
    encode()
        .map(Some)
        .map_err(|error| ComponentError::Module { world: world.into(), why: format!("{error:#}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wit() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit")
    }

    #[test]
    fn a_module_of_the_world_becomes_a_component_and_stays_one() {
        let module = wat::parse_str(
            r#"(module
                (import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))
                (memory (export "memory") 1)
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable)
                (func (export "weir:inference/stage@0.1.0#run") (param i32 i32) (result i32) unreachable))"#,
        )
        .unwrap();
        let made = component_of(&module, &wit(), "tensor-function").unwrap().unwrap();
        assert!(made.starts_with(b"\0asm\x0d\0\x01\0"));
        assert_eq!(component_of(&made, &wit(), "tensor-function").unwrap(), None);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let module = wat::parse_str("(module (memory (export \"memory\") 1))").unwrap();
        let error = component_of(&module, &wit(), "tensor-function").unwrap_err();
        assert!(error.to_string().contains("weir:inference/stage"), "{error}");
        let error = component_of(&module, &wit(), "no-such-world").unwrap_err();
        assert!(error.to_string().contains("no-such-world"), "{error}");
    }
}
