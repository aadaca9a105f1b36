//! Checks of messages over gRPC with arbitrary bytes.

use super::message;
use crate::v2::RequestInput;
use bytes::Bytes;
use weir_grpc::{
    HealthCheckRequest, ITEMS_MAX, ModelConfigRequest, ModelInferRequest, ModelMetadataRequest,
    ModelReadyRequest, ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest, ServerReflectionRequest, decode,
};

/// Decodes or refuses a message as each request of the services.
pub(crate) fn messages(bytes: &Bytes) {
    if let Ok(request) = decode::<ModelInferRequest>(bytes.clone()) {
        inference(request, bytes.len());
    }
    if let Ok(request) = decode::<ServerReflectionRequest>(bytes.clone()) {
        assert!(request.answer().answer.is_some());
    }
    let _ = decode::<HealthCheckRequest>(bytes.clone());
    let _ = decode::<ModelReadyRequest>(bytes.clone());
    let _ = decode::<ModelMetadataRequest>(bytes.clone());
    let _ = decode::<ModelConfigRequest>(bytes.clone());
    let _ = decode::<ModelStatisticsRequest>(bytes.clone());
    let _ = decode::<RepositoryIndexRequest>(bytes.clone());
    let _ = decode::<RepositoryModelLoadRequest>(bytes.clone());
    let _ = decode::<RepositoryModelUnloadRequest>(bytes.clone());
}

/// An inference that is read has as many inputs as its message, and complete tensors.
fn inference(request: ModelInferRequest, message_bytes: usize) {
    let inputs = request.inputs.len();
    let raw_bytes: usize = request.raw_input_contents.iter().map(Bytes::len).sum();
    assert!(inputs <= ITEMS_MAX && raw_bytes <= message_bytes);
    let Ok(asked) = message::asked(request) else { return };
    assert_eq!(asked.inputs.len(), inputs);
    for (_, input) in asked.inputs {
        let RequestInput::Here(tensor) = input else { continue };
        assert!(tensor.shape().check(tensor.element_type(), tensor.data()).is_ok());
    }
}
