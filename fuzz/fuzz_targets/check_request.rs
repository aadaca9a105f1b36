//! Checks for arbitrary bytes as a request body. The fuzzer uses them, and so does a test of
//! `protocol/`, which keeps them compiling.

use std::convert::Infallible;
use weir_protocol::{Classes, InferenceRequest, InputData, RawInput};
use weir_types::{ElementType, Port, Shape};

/// Parses or rejects a body. The first two bytes are the length of the JSON header; 65535 stands
/// for a request without the length header.
pub(crate) fn read_or_refuse(bytes: &[u8]) {
    let Some((header, body)) = bytes.split_first_chunk::<2>() else { return };
    let header = u16::from_le_bytes(*header);
    let json_bytes = (header != u16::MAX).then_some(usize::from(header));
    let Ok(request) = InferenceRequest::parse(body, json_bytes) else { return };
    let mut binary_bytes = 0;
    for input in &request.inputs {
        let data = match &input.data {
            InputData::Binary(range) => {
                binary_bytes += range.len();
                body[range.clone()].to_vec()
            }
            InputData::Json(elements) => {
                let mut data = Vec::new();
                let put = |more: &[u8]| -> Result<(), Infallible> {
                    data.extend_from_slice(more);
                    Ok(())
                };
                if elements.decode(put).is_err() {
                    continue;
                }
                assert!(input.datatype.size_bytes().is_none() || data.len() <= elements.bytes_max());
                data
            }
            // The data is in a shared region and has no bytes in the body.
            InputData::Region(_) => continue,
        };
        if input.shape.check(input.datatype, &data).is_err() {
            continue;
        }
        if let Ok(classes) = Classes::new(input.datatype, &input.shape, &data, None, 3, 1 << 20) {
            assert!(classes.shape.check(ElementType::Bytes, &classes.data).is_ok());
        }
        raw(input.shape.dimensions(), input.datatype, data.len());
    }
    // Every byte after the JSON belongs to an input.
    assert_eq!(binary_bytes, json_bytes.map_or(0, |json_bytes| body.len() - json_bytes));
}

/// Checks that the shape inferred for a raw body matches the body's length.
fn raw(dimensions: &[u32], datatype: ElementType, bytes: usize) {
    let shape = dimensions.iter().enumerate().map(|(place, size)| (place > 0).then_some(*size)).collect();
    let port = Port { name: "x".to_owned(), datatype, shape };
    if let Ok(input) = RawInput::for_ports(&[port], bytes) {
        let shape: &Shape = &input.shape;
        assert!(datatype.size_bytes().is_none_or(|size| shape.element_count() * size as u64 == bytes as u64));
    }
}
