//! Reads the imports of a component, and its kind of function from its exports.

use crate::sources;
use wasmparser::{Encoding, Parser, Payload};
use weir_types::{ErrorCode, FunctionKind};

/// The imports and the kind of a component.
#[derive(Debug)]
pub(super) struct Outline {
    /// The imported interfaces, such as `wasi:http/types@0.2.4`.
    pub(super) imports: Vec<String>,
    /// The kind of function, which determines how it is called.
    pub(super) kind: FunctionKind,
    /// Whether a part of the component has debug information.
    pub(super) has_debug_info: bool,
}

/// Reads the outline of `bytes` without compiling them.
pub(super) fn outline(bytes: &[u8]) -> Result<Outline, (ErrorCode, String)> {
    if !bytes.starts_with(b"\0asm") {
        let text = if bytes.starts_with(b"(module") || bytes.starts_with(b"(component") {
            "this is WebAssembly text; send the binary (`wasm-tools parse` makes it)".to_owned()
        } else {
            format!("this is not WebAssembly: it does not start with \\0asm (it has {} bytes)", bytes.len())
        };
        return Err((ErrorCode::InvalidComponent, text));
    }
    let mut depth = 0_usize;
    let mut imports = Vec::new();
    let mut exports = Vec::new();
    let mut has_debug_info = false;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(invalid)?;
        has_debug_info |= sources::has_debug_info(&payload);
        match payload {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => return Err(core_module()),
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import.map_err(invalid)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exports.push(export.map_err(invalid)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    let kind = kind_of(&exports).ok_or_else(|| no_entry_point(&exports))?;
    Ok(Outline { imports, kind, has_debug_info })
}

fn kind_of(exports: &[String]) -> Option<FunctionKind> {
    let has = |prefix: &str| exports.iter().any(|name| name.starts_with(prefix));
    // A component that exports both generations runs in the faster engine.
    if has("wasi:http/incoming-handler@0.2.") {
        Some(FunctionKind::Http02)
    } else if has("wasi:http/handler@0.3.") {
        Some(FunctionKind::Http03)
    } else if has("weir:inference/stage@0.1.") {
        Some(FunctionKind::Tensor)
    } else {
        None
    }
}

#[expect(clippy::needless_pass_by_value, reason = "shaped for map_err")]
fn invalid(error: wasmparser::BinaryReaderError) -> (ErrorCode, String) {
    (ErrorCode::InvalidComponent, format!("the component is broken or cut short: {error}"))
}

fn core_module() -> (ErrorCode, String) {
    let text = "this is a core WebAssembly module, not a component; build for wasm32-wasip2, or wrap it with `wasm-tools component new`";
    (ErrorCode::InvalidComponent, text.to_owned())
}

fn no_entry_point(exports: &[String]) -> (ErrorCode, String) {
    let found = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
    let text = format!(
        "the component exports none of wasi:http/incoming-handler@0.2, wasi:http/handler@0.3 and weir:inference/stage@0.1; it exports {found}"
    );
    (ErrorCode::NoEntryPoint, text)
}
