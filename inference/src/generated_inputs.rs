//! Generates inputs of a model, for runs that measure the model or warm it up.

use crate::{Tensor, TensorError};
use std::collections::BTreeMap;
use weir_device::{Arena, ArenaExhausted};
use weir_types::{ElementType, Port, Shape, ShapeError, Signature};

/// The size limit of one run's inputs: the same as for a batch.
const INPUT_BYTES_MAX: u64 = 64 << 20;
/// The default name of the input that marks padding.
const MASK: &str = "attention_mask";

/// The number of elements before the pattern repeats.
const PATTERN: u64 = 1_000;

/// The reason why no inputs can be generated.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// `dims` names an input (first field) that is not one of the model's inputs (second field).
    #[error("dims names {0:?}, but the model has no such input; its inputs are {1}")]
    Unknown(String, String),
    /// `dims` has too few or too many sizes for an input.
    #[error(
        "input {port} has {wanted} dimensions that may vary{beside}, and dims has {given} for it: say how large each is to be, as in --dims {name}={example} (\"dims\": {{\"{name}\": [{example}]}})",
        name = port.name
    )]
    Dims {
        /// The input.
        port: Box<Port>,
        /// The number of its variable dimensions, without the batch.
        wanted: usize,
        /// The number of sizes in `dims`.
        given: usize,
        /// ` in addition to the batch` if the model has a batch dimension; else empty.
        beside: &'static str,
        /// Sizes for the example in the message, such as `16,16`.
        example: String,
    },
    /// `dims` has a size of 0 for an input.
    #[error("input {0}: a dimension is at least 1")]
    Zero(String),
    /// The shape of an input is not valid.
    #[error("input {0}: {1}")]
    Shape(String, ShapeError),
    /// The inputs of one run, with this many bytes, exceed the limit.
    #[error("the inputs of one run have {0} bytes; the limit is {INPUT_BYTES_MAX}")]
    TooLarge(u64),
    /// The arena has no room for the inputs.
    #[error(transparent)]
    Memory(#[from] ArenaExhausted),
    /// A generated input is not a valid tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The inputs to generate, checked against the model's signature.
pub struct GeneratedInputs {
    ports: Vec<Port>,
    /// Whether the first dimension of each input is the number of items.
    takes_batches: bool,
    mask: String,
    /// The sizes of each input's variable dimensions in their order, without the batch dimension.
    dims: BTreeMap<String, Vec<u32>>,
}

impl GeneratedInputs {
    /// Plans inputs with variable dimensions of the sizes in `dims`, for batches up to `batch_max`.
    ///
    /// # Errors
    /// If `dims` does not have a size for each variable dimension, or the inputs are too large.
    pub fn new(
        signature: &Signature,
        mask: Option<&str>,
        dims: BTreeMap<String, Vec<u32>>,
        batch_max: u32,
    ) -> Result<Self, InputsError> {
        let ports = signature.inputs.clone();
        if let Some(name) = dims.keys().find(|name| ports.iter().all(|port| port.name != **name)) {
            let have: Vec<_> = ports.iter().map(ToString::to_string).collect();
            return Err(InputsError::Unknown(name.clone(), have.join(", ")));
        }
        let mask = mask.unwrap_or(MASK).to_owned();
        let inputs = Self { ports, takes_batches: signature.has_batch_dimension(), mask, dims };
        inputs.shapes(batch_max)?;
        Ok(inputs)
    }

    /// Plans inputs for one item, with variable dimensions of size 1.
    ///
    /// # Errors
    /// If the inputs of this size are too large.
    pub fn smallest(signature: &Signature, mask: Option<&str>) -> Result<Self, InputsError> {
        let skipped = usize::from(signature.has_batch_dimension());
        let dims = signature.inputs.iter().map(|port| {
            let variable = port.shape.iter().skip(skipped).filter(|size| size.is_none());
            (port.name.clone(), vec![1; variable.count()])
        });
        Self::new(signature, mask, dims.collect(), 1)
    }

    /// Generates a tensor for every input. Floating-point numbers are spread over 0 to 1. Integers
    /// are 0, which is a valid index of every vocabulary, and 1 in a mask. Blocks while filling the
    /// memory.
    ///
    /// # Errors
    /// If the arena has no room.
    pub fn make(&self, batch: u32, arena: &Arena) -> Result<Vec<(String, Tensor)>, InputsError> {
        let made = self.ports.iter().zip(self.shapes(batch)?).map(|(port, shape)| {
            let data =
                arena.copy_of(&elements(port.datatype, shape.element_count(), port.name == self.mask))?;
            Ok((port.name.clone(), Tensor::new(port.datatype, shape, data)?))
        });
        made.collect()
    }

    fn shapes(&self, batch: u32) -> Result<Vec<Shape>, InputsError> {
        let batch = self.takes_batches.then_some(batch);
        let shapes: Vec<_> =
            self.ports.iter().map(|port| shape(port, batch, &self.dims)).collect::<Result<_, _>>()?;
        let bytes = self.ports.iter().zip(&shapes);
        let bytes = bytes.map(|(port, shape)| bytes_of(port.datatype, shape.element_count()));
        let bytes = bytes.fold(0, u64::saturating_add);
        if bytes > INPUT_BYTES_MAX { Err(InputsError::TooLarge(bytes)) } else { Ok(shapes) }
    }
}

fn shape(port: &Port, batch: Option<u32>, dims: &BTreeMap<String, Vec<u32>>) -> Result<Shape, InputsError> {
    let given = dims.get(&port.name).map(Vec::as_slice).unwrap_or_default();
    let open = port.shape.iter().skip(usize::from(batch.is_some())).filter(|size| size.is_none()).count();
    if open != given.len() {
        let beside = if batch.is_some() { " in addition to the batch" } else { "" };
        let example = vec!["16"; open].join(",");
        let port = Box::new(port.clone());
        return Err(InputsError::Dims { port, wanted: open, given: given.len(), beside, example });
    }
    if given.contains(&0) {
        return Err(InputsError::Zero(port.to_string()));
    }
    let mut sizes = batch.into_iter().chain(given.iter().copied());
    let dimensions: Vec<u32> =
        port.shape.iter().map(|size| size.or_else(|| sizes.next()).unwrap_or(1)).collect();
    Shape::new(&dimensions).map_err(|error| InputsError::Shape(port.to_string(), error))
}

fn bytes_of(datatype: ElementType, count: u64) -> u64 {
    count.saturating_mul(element(datatype, 0, false).len() as u64)
}

/// Repeats the same [`PATTERN`] elements.
fn elements(datatype: ElementType, count: u64, is_mask: bool) -> Vec<u8> {
    let pattern: Vec<u8> =
        (0..PATTERN.min(count)).flat_map(|place| element(datatype, place, is_mask)).collect();
    let len = usize::try_from(bytes_of(datatype, count)).unwrap_or(usize::MAX);
    let mut elements = Vec::with_capacity(len);
    while elements.len() < len {
        let rest = len - elements.len();
        elements.extend_from_slice(pattern.get(..rest).unwrap_or(&pattern));
    }
    elements
}

/// One element, as stored in memory.
fn element(datatype: ElementType, place: u64, is_mask: bool) -> Vec<u8> {
    // Multiplies by a prime: neighbours differ, and every value occurs.
    let part = (place.wrapping_mul(7_919) % PATTERN) as f64 / PATTERN as f64;
    let number = u64::from(is_mask);
    match datatype {
        ElementType::Fp64 => part.to_le_bytes().to_vec(),
        ElementType::Fp32 => (part as f32).to_le_bytes().to_vec(),
        // One half and one quarter, in either 16-bit format.
        ElementType::Fp16 => if place.is_multiple_of(2) { 0x3800_u16 } else { 0x3400 }.to_le_bytes().to_vec(),
        ElementType::Bf16 => if place.is_multiple_of(2) { 0x3f00_u16 } else { 0x3e80 }.to_le_bytes().to_vec(),
        // One letter, preceded by its length.
        ElementType::Bytes => vec![1, 0, 0, 0, b'a'],
        integer => {
            let size = integer.size_bytes().unwrap_or(1);
            number.to_le_bytes().into_iter().take(size).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, datatype: ElementType, shape: &[Option<u32>]) -> Port {
        Port { name: name.into(), datatype, shape: shape.to_vec() }
    }

    fn signature(inputs: Vec<Port>) -> Signature {
        Signature { inputs, outputs: vec![port("y", ElementType::Fp32, &[None])] }
    }

    fn make(
        signature: &Signature,
        batch: u32,
        dims: &[(&str, &[u32])],
    ) -> Result<Vec<(String, Tensor)>, String> {
        let dims = dims.iter().map(|(name, sizes)| ((*name).to_owned(), sizes.to_vec())).collect();
        let inputs = GeneratedInputs::new(signature, None, dims, batch).map_err(|error| error.to_string())?;
        inputs.make(batch, &Arena::new(256 << 20)).map_err(|error| error.to_string())
    }

    #[test]
    fn inputs_of_every_type_are_valid_tensors() {
        use ElementType as E;
        let types = [
            E::Bool,
            E::Uint8,
            E::Uint16,
            E::Uint32,
            E::Uint64,
            E::Int8,
            E::Int16,
            E::Int32,
            E::Int64,
            E::Fp16,
            E::Bf16,
            E::Fp32,
            E::Fp64,
            E::Bytes,
        ];
        for datatype in types {
            let signature = signature(vec![port("x", datatype, &[None, Some(3)])]);
            let made = make(&signature, 4, &[]).unwrap();
            let (_, tensor) = &made[0];
            assert!(signature.inputs[0].accepts(datatype, tensor.shape()), "{datatype}");
            assert_eq!(tensor.shape().dimensions(), [4, 3], "{datatype}");
            tensor.shape().check(datatype, tensor.data()).unwrap();
        }
    }

    #[test]
    fn masks_are_all_ones_and_indices_are_all_zeros() {
        let signature = signature(vec![
            port("input_ids", ElementType::Int64, &[None, None]),
            port("attention_mask", ElementType::Int64, &[None, None]),
        ]);
        let made = make(&signature, 2, &[("input_ids", &[3]), ("attention_mask", &[3])]).unwrap();
        let numbers = |place: usize| -> Vec<i64> {
            made[place]
                .1
                .data()
                .chunks_exact(8)
                .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
                .collect()
        };
        assert_eq!((numbers(0), numbers(1)), (vec![0; 6], vec![1; 6]));
    }

    #[test]
    fn sizes_of_variable_dimensions_are_required() {
        let images = signature(vec![port("x", ElementType::Fp32, &[None, Some(3), None, None])]);
        let error = make(&images, 1, &[]).unwrap_err();
        assert!(
            error.contains("x: FP32[?, 3, ?, ?] has 2 dimensions that may vary in addition to the batch"),
            "{error}"
        );
        assert!(error.contains("--dims x=16,16"), "{error}");
        let made = make(&images, 2, &[("x", &[4, 5])]).unwrap();
        assert_eq!(made[0].1.shape().dimensions(), [2, 3, 4, 5]);
        // Without a batch dimension, the sizes of all dimensions are required.
        let mut alone = images.clone();
        alone.outputs = vec![port("y", ElementType::Fp32, &[Some(1)])];
        assert!(make(&alone, 1, &[("x", &[4, 5])]).unwrap_err().contains("has 3 dimensions that may vary,"));
        assert_eq!(make(&alone, 1, &[("x", &[9, 4, 5])]).unwrap()[0].1.shape().dimensions(), [9, 3, 4, 5]);
        for (dims, why) in [
            (("x", &[0_u32, 1][..]), "at least 1"),
            (("z", &[1][..]), "no such input"),
            (("x", &[1][..]), "dims has 1 for it"),
            (("x", &[1 << 14, 1 << 14][..]), "the limit is 67108864"),
            (("x", &[u32::MAX, u32::MAX][..]), "more elements than can exist"),
        ] {
            let error = make(&images, 1, &[dims]).unwrap_err();
            assert!(error.contains(why), "{dims:?}: {error}");
        }
    }

    #[test]
    fn smallest_inputs_need_no_sizes() {
        let inputs = vec![
            port("input_ids", ElementType::Int64, &[None, None]),
            port("image", ElementType::Fp32, &[None, Some(3), None, Some(2)]),
        ];
        let smallest = GeneratedInputs::smallest(&signature(inputs), None).unwrap();
        let made = smallest.make(1, &Arena::new(1 << 20)).unwrap();
        let shapes: Vec<_> = made.iter().map(|(_, tensor)| tensor.shape().to_string()).collect();
        assert_eq!(shapes, ["[1, 1]", "[1, 3, 1, 2]"]);
    }
}
