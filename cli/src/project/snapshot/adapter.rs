//! Keeps the WASI 0.1 adapter of a component out of the snapshot: it starts uninitialised in every
//! instance.
//!
//! A C library for WASI 0.1 looks for open files at its start. The adapter between it and WASI 0.2
//! then takes handles to standard input, output and error, and stores them. In a snapshot they
//! would be handles of a past instance, and the first line that a later instance prints would trap.
//! All state of the adapter is reachable from its globals; with their original values, it takes new
//! handles at the first use.

use wasmparser::{BinaryReader, BinaryReaderError, Parser, Payload};

/// Import module that identifies an adapter: adapters import their allocator from it, and no other
/// module does.
const MAIN_MODULE: &str = "__main_module__";
const HEADER_BYTES: usize = 8;
const CORE_MODULE: u8 = 1;

/// Replaces the adapter in `snapshot` with the adapter of `component`, from which the snapshot was
/// made. Returns `None` if the component has no adapter.
pub(super) fn restore(component: &[u8], snapshot: &[u8]) -> Result<Option<Vec<u8>>, BinaryReaderError> {
    let mut modules = sections(component)?.into_iter().filter(|section| section.id == CORE_MODULE);
    let mut restored = snapshot.get(..HEADER_BYTES).unwrap_or_default().to_vec();
    let mut found = false;
    for mut section in sections(snapshot)? {
        // A snapshot has the modules of its component in the same order.
        if section.id == CORE_MODULE
            && let Some(before) = modules.next()
            && is_adapter(before.content)?
        {
            section = before;
            found = true;
        }
        section.write(&mut restored);
    }
    Ok(found.then_some(restored))
}

/// Section of a component.
struct Section<'a> {
    id: u8,
    content: &'a [u8],
}

impl Section<'_> {
    fn write(&self, to: &mut Vec<u8>) {
        to.push(self.id);
        // LEB128: seven bits per byte, lowest first.
        let mut length = self.content.len();
        while length > 0x7f {
            #[expect(clippy::cast_possible_truncation, reason = "the lowest seven bits")]
            to.push(length as u8 | 0x80);
            length >>= 7;
        }
        #[expect(clippy::cast_possible_truncation, reason = "seven bits are left")]
        to.push(length as u8);
        to.extend_from_slice(self.content);
    }
}

/// The top-level sections of a component.
fn sections(component: &[u8]) -> Result<Vec<Section<'_>>, BinaryReaderError> {
    let mut reader = BinaryReader::new(component, 0);
    reader.read_bytes(HEADER_BYTES)?;
    let mut sections = Vec::new();
    while !reader.eof() {
        let id = reader.read_u8()?;
        let length = reader.read_var_u32()? as usize;
        sections.push(Section { id, content: reader.read_bytes(length)? });
    }
    Ok(sections)
}

fn is_adapter(module: &[u8]) -> Result<bool, BinaryReaderError> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::ImportSection(imports) = payload? {
            for import in imports.into_imports() {
                if import?.module == MAIN_MODULE {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component with a main module and an adapter, each with a global of the given value.
    fn component(main: u32, adapter: u32) -> Vec<u8> {
        let text = format!(
            r#"(component
                (core module (memory (export "memory") 1) (global (mut i32) (i32.const {main})) (func (export "cabi_realloc")))
                (core module (import "__main_module__" "cabi_realloc" (func)) (global (mut i32) (i32.const {adapter})))
                (core module (global (mut i32) (i32.const {main}))))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn only_the_adapter_is_restored() {
        assert_eq!(
            restore(&component(1, 1), &component(70_000, 70_000)).unwrap().unwrap(),
            component(70_000, 1)
        );
    }

    #[test]
    fn component_without_adapter_is_unchanged() {
        let plain = wat::parse_str("(component (core module (import \"m\" \"f\" (func))))").unwrap();
        assert_eq!(restore(&plain, &plain).unwrap(), None);
        assert!(restore(&plain[..plain.len() - 1], &plain).is_err());
    }
}
