//! Raw binary requests: the body is the data of the model's only input
//! (`Inference-Header-Content-Length: 0`).

use weir_types::{ElementType, Port, Shape, ShapeError};

/// The model's only input, with the shape inferred from the length of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawInput {
    /// Name of the input.
    pub name: String,
    /// Element type.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Shape,
    /// Bytes to prepend to the body: the length prefix of a single `BYTES` element.
    pub prefix: Option<[u8; 4]>,
}

/// Reason why a raw body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The model has no inputs or several.
    #[error("a body that is only data is for models with one input; this one has {0}")]
    NotOneInput(usize),
    /// The length of the body does not determine the shape.
    #[error(
        "the length of the data does not determine the shape of {0}, because more than one dimension is variable: send JSON with it"
    )]
    Ambiguous(Port),
    /// No shape of the input has this length.
    #[error("{bytes} bytes are no {port}")]
    Length {
        /// Length of the body.
        bytes: usize,
        /// The model's input.
        port: Port,
    },
    /// The inferred shape is too large.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

impl RawInput {
    /// Infers the input of a model with `inputs` from a body of `bytes` bytes.
    pub fn for_ports(inputs: &[Port], bytes: usize) -> Result<Self, RawError> {
        let [port] = inputs else { return Err(RawError::NotOneInput(inputs.len())) };
        let wrong = || RawError::Length { bytes, port: port.clone() };
        let name = port.name.clone();
        let datatype = port.datatype;
        let Some(element_bytes) = datatype.size_bytes() else {
            // The body is one string; all dimensions are 1.
            if !port.shape.iter().all(|size| matches!(size, None | Some(1))) {
                return Err(wrong());
            }
            let length = u32::try_from(bytes).map_err(|_| wrong())?;
            let shape = Shape::new(&vec![1; port.shape.len()])?;
            return Ok(Self { name, datatype, shape, prefix: Some(length.to_le_bytes()) });
        };
        let fixed: Vec<u32> = port.shape.iter().map(|size| size.unwrap_or(1)).collect();
        let row_bytes = Shape::new(&fixed)?.element_count().saturating_mul(element_bytes as u64);
        let varying = match port.shape.iter().filter(|size| size.is_none()).count() {
            0 => None,
            1 if row_bytes == 0 => return Err(RawError::Ambiguous(port.clone())),
            1 => Some(u32::try_from(bytes as u64 / row_bytes).map_err(|_| wrong())?),
            _ => return Err(RawError::Ambiguous(port.clone())),
        };
        if row_bytes.checked_mul(varying.unwrap_or(1).into()) != Some(bytes as u64) {
            return Err(wrong());
        }
        let dimensions = port.shape.iter().map(|size| size.or(varying).unwrap_or(1)).collect::<Vec<_>>();
        Ok(Self { name, datatype, shape: Shape::new(&dimensions)?, prefix: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(datatype: ElementType, shape: &[Option<u32>]) -> Port {
        Port { name: "x".into(), datatype, shape: shape.to_vec() }
    }

    #[test]
    fn body_length_determines_one_variable_dimension() {
        let of = |datatype, shape: &[Option<u32>], bytes| {
            RawInput::for_ports(&[port(datatype, shape)], bytes).map(|raw| raw.shape.dimensions().to_vec())
        };
        assert_eq!(of(ElementType::Fp32, &[None, Some(4)], 32), Ok(vec![2, 4]));
        assert_eq!(of(ElementType::Fp32, &[None, Some(4)], 0), Ok(vec![0, 4]));
        assert_eq!(of(ElementType::Fp16, &[Some(3)], 6), Ok(vec![3]));
        assert_eq!(of(ElementType::Bytes, &[None, Some(1)], 9), Ok(vec![1, 1]));
        for (datatype, shape, bytes) in [
            (ElementType::Fp32, &[None, Some(4)][..], 33),
            (ElementType::Fp32, &[Some(4)], 8),
            (ElementType::Bytes, &[Some(2)], 8),
            (ElementType::Int64, &[None], 8 << 33),
        ] {
            assert!(matches!(of(datatype, shape, bytes), Err(RawError::Length { .. })), "{shape:?} {bytes}");
        }
        assert!(matches!(of(ElementType::Fp32, &[None, None], 8), Err(RawError::Ambiguous(_))));
        assert!(matches!(of(ElementType::Fp32, &[None, Some(0)], 0), Err(RawError::Ambiguous(_))));
    }

    #[test]
    fn raw_string_gets_a_length_prefix() {
        let raw = RawInput::for_ports(&[port(ElementType::Bytes, &[None])], 3).unwrap();
        assert_eq!(raw.prefix, Some([3, 0, 0, 0]));
    }

    #[test]
    fn raw_body_requires_exactly_one_input() {
        assert_eq!(RawInput::for_ports(&[], 1), Err(RawError::NotOneInput(0)));
        let two = [port(ElementType::Fp32, &[None]), port(ElementType::Fp32, &[None])];
        assert_eq!(RawInput::for_ports(&two, 4), Err(RawError::NotOneInput(2)));
    }
}
