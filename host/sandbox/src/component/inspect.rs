//! Reads the imports of a component, and its kind of function from its exports.

use crate::sources;
use wasmparser::{Encoding, Parser, Payload};
use weir_types::{ErrorCode, FunctionKind};

/// Limit of the exports in an error, in bytes: a component may have any number of exports.
const EXPORTS_LEN_MAX: usize = 1 << 10;
/// Limit of an error, in bytes.
#[cfg(any(test, fuzzing))]
pub(crate) const TEXT_LEN_MAX: usize = EXPORTS_LEN_MAX + (1 << 10);

/// The imports and the kind of a component.
#[derive(Debug)]
pub(crate) struct Outline {
    /// The imported interfaces, such as `wasi:http/types@0.2.4`.
    pub(crate) imports: Vec<String>,
    /// The kind of function, which determines how it is called.
    pub(crate) kind: FunctionKind,
    /// Whether a part of the component has debug information.
    pub(crate) has_debug_info: bool,
}

/// Reads the outline of `bytes` without compiling them.
pub(crate) fn outline(bytes: &[u8]) -> Result<Outline, (ErrorCode, String)> {
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
    let mut found = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
    if found.len() > EXPORTS_LEN_MAX {
        found.truncate(found.floor_char_boundary(EXPORTS_LEN_MAX));
        found.push_str("...");
    }
    let text = format!(
        "the component exports none of wasi:http/incoming-handler@0.2, wasi:http/handler@0.3 and weir:inference/stage@0.1; it exports {found}"
    );
    (ErrorCode::NoEntryPoint, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section of a component.
    fn section(id: u8, contents: &[u8]) -> Vec<u8> {
        let mut section = vec![id];
        let mut length = contents.len();
        loop {
            let low = u8::try_from(length & 0x7f).unwrap();
            length >>= 7;
            section.push(if length > 0 { low | 0x80 } else { low });
            if length == 0 {
                break;
            }
        }
        section.extend_from_slice(contents);
        section
    }

    /// Regression test: the error listed all exports, and so was as long as the component.
    #[test]
    fn error_without_an_entry_point_lists_a_limited_number_of_exports() {
        let mut exports = vec![100];
        for _ in 0..100 {
            exports.extend_from_slice(&[0, 90]);
            exports.extend_from_slice(&[b'e'; 90]);
            exports.extend_from_slice(&[5, 0, 0]);
        }
        let component =
            [&b"\0asm\x0d\0\x01\0"[..], &section(7, &[1, 0x42, 0]), &section(11, &exports)].concat();
        let (code, text) = outline(&component).unwrap_err();
        assert_eq!(code, ErrorCode::NoEntryPoint);
        assert!(text.len() <= TEXT_LEN_MAX && text.ends_with("..."), "{} bytes: {text:.200}", text.len());
    }
}
