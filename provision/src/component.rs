//! Converts core modules, the output of C and other compilers, to components.

use std::path::Path;
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER as ADAPTER,
};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

/// Header of a core module. The header of a component has a different version field.
const MODULE: [u8; 8] = *b"\0asm\x01\0\0\0";

/// Reason why a module cannot be converted to a component.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// The world could not be loaded.
    #[error("the world {world} in {wit}: {why}", wit = .wit.display())]
    World {
        /// Name of the world.
        world: String,
        /// Folder with the WIT files.
        wit: std::path::PathBuf,
        /// Reason.
        why: String,
    },
    /// The module does not match the world.
    #[error("the module does not implement {world}: {why}")]
    Module {
        /// Name of the world.
        world: String,
        /// Reason.
        why: String,
    },
}

/// Converts the core module `wasm` to a component of `world`, defined in the folder `wit`. The
/// module must use canonical ABI names and UTF-8 strings. It may import a subset of the world, and
/// WASI preview 1. Returns `None` if `wasm` is already a component.
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
    fn component_of_converts_modules_and_accepts_components() {
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
    fn mismatched_module_or_world_is_reported() {
        let module = wat::parse_str("(module (memory (export \"memory\") 1))").unwrap();
        let error = component_of(&module, &wit(), "tensor-function").unwrap_err();
        assert!(error.to_string().contains("weir:inference/stage"), "{error}");
        let error = component_of(&module, &wit(), "no-such-world").unwrap_err();
        assert!(error.to_string().contains("no-such-world"), "{error}");
    }
}
