//! Request and response bodies of the Open Inference Protocol, version 2.
//!
//! The crate consists of pure functions: it does no I/O, allocates no tensors and is independent of
//! the server, so that all of it can be fuzzed (`fuzz/`). [`InferenceRequest::parse`] parses a
//! body, which is JSON alone or JSON followed by binary tensors, into [`InferenceInput`]s. The data
//! of an input is a range of the body, or text that [`Elements::decode`] converts to bytes.
//! [`InferenceResponse`] serialises a response.
//!
//! ```
//! use weir_protocol::{InferenceRequest, InputData};
//!
//! let json = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}"#;
//! let body = [&json[..], &1.5_f32.to_le_bytes(), &2.5_f32.to_le_bytes()].concat();
//! let request = InferenceRequest::parse(&body, Some(json.len()))?;
//! assert_eq!(request.inputs[0].data, InputData::Binary(json.len()..body.len()));
//! # Ok::<(), weir_protocol::RequestError>(())
//! ```

mod request;
pub use request::{
    INPUTS_MAX, InferenceInput, InferenceRequest, InputData, JSON_BYTES_MAX, OUTPUTS_MAX, Region,
    RequestError, RequestedOutput,
};

mod raw;
pub use raw::{RawError, RawInput};

mod wire;
pub use wire::Parameters;

mod elements;
pub use elements::{DEPTH_MAX, Elements, ElementsError};

mod answer;
pub use answer::{Form, InferenceResponse, ResponseOutput};

mod classes;
pub use classes::{CLASSES_MAX, ClassError, Classes};
