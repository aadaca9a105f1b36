//! Buffer table of a graph: numbers, names, shapes and constant data.

use crate::document::{Constant, GraphDocument};
use crate::error::KernelGraphError;
use crate::expression::Expression;
use std::collections::HashMap;
use weir_types::ElementType;

/// Maximum number of buffers of a graph.
const BUFFERS_MAX: usize = 256;
/// Maximum length of a name of a buffer, launch or source, in bytes.
const NAME_LEN_MAX: usize = 64;
/// Maximum number of dimensions of a buffer.
const RANK_MAX: usize = 16;

/// Role of a buffer in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Input,
    Output,
    Temporary,
    /// Offset in bytes from the start of the first constant.
    Constant(u64),
}

/// Definition of one buffer.
#[derive(Debug, Clone)]
pub(crate) struct BufferDefinition {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) datatype: ElementType,
    pub(crate) element_bytes: u64,
    pub(crate) shape: Vec<Expression>,
    pub(crate) zero: bool,
}

/// All buffers of a graph: the inputs first, then the outputs, temporaries and constants, each in
/// the order of the document.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    pub(crate) all: Vec<BufferDefinition>,
    /// Bytes of all constants, concatenated; each constant starts at a multiple of
    /// [`ALIGNMENT_BYTES`](crate::ALIGNMENT_BYTES).
    pub(crate) constants: Vec<u8>,
    by_name: HashMap<String, usize>,
}

impl Buffers {
    pub(crate) fn from_document(document: &GraphDocument) -> Result<Self, KernelGraphError> {
        let found = document.inputs.len()
            + document.outputs.len()
            + document.temporaries.len()
            + document.constants.len();
        if found > BUFFERS_MAX {
            let place = "the graph".to_owned();
            return Err(KernelGraphError::TooMany { place, what: "buffers", max: BUFFERS_MAX, found });
        }
        let mut buffers = Self { all: Vec::new(), constants: Vec::new(), by_name: HashMap::new() };
        for input in &document.inputs {
            if let Some(other) =
                input.shape.iter().find(|size| size.as_number().is_none() && size.as_dimension().is_none())
            {
                let input = input.name.clone();
                let dimension = other.to_string();
                return Err(KernelGraphError::InputDimension { input, dimension });
            }
            buffers.add(&input.name, Role::Input, input.datatype, &input.shape, false)?;
        }
        for (all, role) in [(&document.outputs, Role::Output), (&document.temporaries, Role::Temporary)] {
            for buffer in all {
                buffers.add(&buffer.name, role, buffer.datatype, &buffer.shape, buffer.zero)?;
            }
        }
        for constant in &document.constants {
            let start = buffers.constants.len().next_multiple_of(crate::limits::ALIGNMENT_BYTES as usize);
            buffers.constants.resize(start, 0);
            buffers.constants.extend(elements(constant)?);
            let shape: Vec<_> =
                constant.shape.iter().map(|size| Expression::number(i64::from(*size))).collect();
            buffers.add(&constant.name, Role::Constant(start as u64), constant.datatype, &shape, false)?;
        }
        Ok(buffers)
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Comma-separated names of all buffers, for error messages.
    pub(crate) fn names(&self) -> String {
        self.all.iter().map(|buffer| buffer.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn add(
        &mut self,
        name: &str,
        role: Role,
        datatype: ElementType,
        shape: &[Expression],
        zero: bool,
    ) -> Result<(), KernelGraphError> {
        check_name("a buffer", name)?;
        let element_bytes =
            datatype.size_bytes().ok_or_else(|| KernelGraphError::Bytes(name.to_owned()))? as u64;
        if shape.len() > RANK_MAX {
            let place = format!("buffer {name:?}");
            let found = shape.len();
            return Err(KernelGraphError::TooMany { place, what: "dimensions", max: RANK_MAX, found });
        }
        if self.by_name.insert(name.to_owned(), self.all.len()).is_some() {
            return Err(KernelGraphError::Duplicate { what: "buffers", name: name.to_owned() });
        }
        let name = name.to_owned();
        let shape = shape.to_vec();
        self.all.push(BufferDefinition { name, role, datatype, element_bytes, shape, zero });
        Ok(())
    }
}

/// Checks a name: 1 to 64 ASCII letters, digits, `_`, `-` and `.`.
///
/// The restriction keeps names readable in error messages, and keeps file names free of path
/// separators.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), KernelGraphError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if (1..=NAME_LEN_MAX).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(KernelGraphError::Name { what, name: name.chars().take(NAME_LEN_MAX).collect() })
}

/// Encodes the elements of a constant as little-endian bytes.
fn elements(constant: &Constant) -> Result<Vec<u8>, KernelGraphError> {
    let wrong = |why: String| KernelGraphError::Constant { name: constant.name.clone(), why };
    let count = constant.shape.iter().try_fold(1_u64, |count, size| count.checked_mul(u64::from(*size)));
    if count != Some(constant.data.len() as u64) {
        let shape = &constant.shape;
        return Err(wrong(format!("{} elements are given for the shape {shape:?}", constant.data.len())));
    }
    let mut bytes = Vec::new();
    for number in &constant.data {
        let fits = push(&mut bytes, constant.datatype, number);
        fits.ok_or_else(|| wrong(format!("{number} is no {}", constant.datatype)))?;
    }
    Ok(bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "a decimal number is rounded to the nearest FP32")]
fn push(bytes: &mut Vec<u8>, datatype: ElementType, number: &serde_json::Number) -> Option<()> {
    let signed = number.as_i64();
    let unsigned = number.as_u64();
    match datatype {
        ElementType::Bool => bytes.push(u8::from(unsigned.filter(|value| *value <= 1)? == 1)),
        ElementType::Uint8 => bytes.extend(u8::try_from(unsigned?).ok()?.to_le_bytes()),
        ElementType::Uint16 => bytes.extend(u16::try_from(unsigned?).ok()?.to_le_bytes()),
        ElementType::Uint32 => bytes.extend(u32::try_from(unsigned?).ok()?.to_le_bytes()),
        ElementType::Uint64 => bytes.extend(unsigned?.to_le_bytes()),
        ElementType::Int8 => bytes.extend(i8::try_from(signed?).ok()?.to_le_bytes()),
        ElementType::Int16 => bytes.extend(i16::try_from(signed?).ok()?.to_le_bytes()),
        ElementType::Int32 => bytes.extend(i32::try_from(signed?).ok()?.to_le_bytes()),
        ElementType::Int64 => bytes.extend(signed?.to_le_bytes()),
        ElementType::Fp32 => bytes.extend((number.as_f64()? as f32).to_le_bytes()),
        ElementType::Fp64 => bytes.extend(number.as_f64()?.to_le_bytes()),
        // FP16 and BF16 constants are unsupported: a kernel can convert them from FP32.
        ElementType::Fp16 | ElementType::Bf16 | ElementType::Bytes => return None,
    }
    Some(())
}
