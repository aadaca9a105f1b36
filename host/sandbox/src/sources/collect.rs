//! Reads the debug information of a component. Runs in a child process.

use super::SourceFrame;
use super::writer::{TableFull, TableWriter};
use addr2line::Context;
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use wasmparser::{FunctionBody, Parser, Payload};

const SECTION_PREFIX: &str = ".debug_";

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Whether `payload` is a section of debug information from which locations can be read.
pub(crate) fn has_debug_info(payload: &Payload<'_>) -> bool {
    matches!(payload, Payload::CustomSection(section) if section.name() == SectionId::DebugLine.name())
}

/// The reason why a component has no table.
#[derive(Debug, thiserror::Error)]
pub(super) enum CollectError {
    #[error(transparent)]
    Component(#[from] wasmparser::BinaryReaderError),
    #[error(transparent)]
    Full(#[from] TableFull),
}

/// The parts of a core module that matter for source locations.
#[derive(Default)]
struct CoreModule<'a> {
    /// The offset in the component from which the addresses in the debug information count.
    code_start: usize,
    bodies: Vec<FunctionBody<'a>>,
    debug: Vec<(&'a str, &'a [u8])>,
}

/// The locations of all instructions of `component`.
pub(super) fn collect(component: &[u8]) -> Result<TableWriter, CollectError> {
    let mut table = TableWriter::default();
    let mut open: Vec<CoreModule<'_>> = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        match (payload?, open.last_mut()) {
            (Payload::ModuleSection { .. } | Payload::ComponentSection { .. }, _) => {
                open.push(CoreModule::default());
            }
            (Payload::CodeSectionStart { range, .. }, Some(module)) => module.code_start = range.start,
            (Payload::CodeSectionEntry(body), Some(module)) => module.bodies.push(body),
            (Payload::CustomSection(section), Some(module)) if section.name().starts_with(SECTION_PREFIX) => {
                module.debug.push((section.name(), section.data()));
            }
            (Payload::End(_), Some(_)) => {
                if let Some(module) = open.pop() {
                    module.collect(&mut table)?;
                }
            }
            _ => {}
        }
    }
    Ok(table)
}

impl CoreModule<'_> {
    fn collect(&self, table: &mut TableWriter) -> Result<(), CollectError> {
        if self.debug.is_empty() {
            return Ok(());
        }
        let load = |id: SectionId| {
            let found = self.debug.iter().find(|(name, _)| *name == id.name());
            Ok::<_, gimli::Error>(Slice::new(found.map_or(&[], |(_, data)| data), LittleEndian))
        };
        // Invalid debug information is like none: toolchains may write sections that gimli rejects.
        let Ok(context) = Dwarf::load(load).and_then(Context::from_dwarf) else { return Ok(()) };
        for body in &self.bodies {
            let Ok(start) = u32::try_from(body.range().start) else { break };
            table.begin_function(start);
            let mut operators = body.get_operators_reader()?;
            while !operators.eof() {
                let at = operators.original_position();
                operators.read()?;
                let (Ok(offset), Some(address)) = (u32::try_from(at), at.checked_sub(self.code_start)) else {
                    break;
                };
                table.add(offset, frames_at(&context, address as u64))?;
            }
        }
        Ok(())
    }
}

/// The frames at `address` of the code section, innermost first.
fn frames_at(context: &Context<Slice<'_>>, address: u64) -> Vec<SourceFrame> {
    let mut frames = Vec::new();
    let Ok(mut found) = context.find_frames(address).skip_all_loads() else { return frames };
    while let Ok(Some(frame)) = found.next() {
        let location = frame.location;
        let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
        frames.push(SourceFrame {
            function: name.map(|name| demangled(&name)).unwrap_or_default(),
            file: location.as_ref().and_then(|at| at.file).unwrap_or_default().to_owned(),
            line: location.as_ref().and_then(|at| at.line).unwrap_or_default(),
            column: location.as_ref().and_then(|at| at.column).unwrap_or_default(),
        });
    }
    frames
}

/// Without the hash of the compiler's version.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section of a core module, shorter than 128 bytes.
    fn section(id: u8, contents: &[u8]) -> Vec<u8> {
        [&[id, u8::try_from(contents.len()).unwrap()], contents].concat()
    }

    /// A component of a module with an empty function, and with debug information.
    fn component(debug: &[(&str, &[u8])]) -> Vec<u8> {
        let types = section(1, b"\x01\x60\x00\x00");
        let functions = section(3, b"\x01\x00");
        let code = section(10, b"\x01\x02\x00\x0b");
        let custom = debug.iter().flat_map(|(name, data)| {
            section(0, &[&[u8::try_from(name.len()).unwrap()], name.as_bytes(), data].concat())
        });
        let module = [b"\0asm\x01\0\0\0".to_vec(), types, functions, code, custom.collect()].concat();
        [b"\0asm\x0d\0\x01\0".to_vec(), section(1, &module)].concat()
    }

    #[test]
    fn component_without_debug_information_has_no_table() {
        assert!(collect(&component(&[])).unwrap().is_empty());
    }

    #[test]
    fn invalid_debug_information_is_ignored() {
        for garbage in [&b""[..], b"\xff\xff\xff\xff", &[0x20; 20]] {
            let component = component(&[(".debug_line", garbage), (".debug_info", garbage)]);
            assert!(collect(&component).unwrap().is_empty(), "{garbage:?}");
        }
        assert!(matches!(collect(b"\0asm\x0d\0\x01\0\x01\x7f"), Err(CollectError::Component(_))));
    }
}
