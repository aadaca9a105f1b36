//! Implements `weir:inference/request`.

use super::bindings::weir::inference::request::Host;
use super::bindings::weir::inference::tensors::ElementType as GuestType;
use super::tensors::push;
use super::{CallError, InferenceView};
use crate::instance::{GuestRequestBody, RequestCell};
use axum::body::Body;
use futures::StreamExt;
use wasmtime::component::Resource;
use weir_device::{Arena, Buffer};
use weir_inference::{Tensor, Value};
use weir_types::{ElementType, Shape};

/// The dimension that stands for "computed from the body's length".
const INFERRED: u32 = u32::MAX;

impl Host for InferenceView<'_> {
    async fn take_body_as_tensor(
        &mut self,
        element_type: GuestType,
        shape: Vec<u32>,
    ) -> Result<Resource<Value>, CallError> {
        let element_type = ElementType::from(element_type);
        let data = match self.ctx.request.take_body().map_err(CallError::invalid)? {
            GuestRequestBody::Whole(buffer) | GuestRequestBody::WholeWithTrailers(buffer, _) => buffer,
            GuestRequestBody::Stream(body) => {
                let bytes_max = self.ctx.request_body_bytes_max;
                collect(&self.ctx.arena, body, bytes_max, &self.ctx.request).await?
            }
        };
        let shape = infer_dimension(&shape, element_type, data.len())?;
        let tensor = Tensor::new(element_type, shape, data).map_err(CallError::invalid)?;
        push(self.ctx, self.table, tensor)
    }

    async fn reply_with_tensor(&mut self, tensor: Resource<Value>) -> Result<(), CallError> {
        let tensor = self.host_tensor(&tensor).await?;
        self.ctx.request.set_answer(tensor).map_err(CallError::invalid)
    }
}

/// Receives all of `body` into the arena.
async fn collect(
    arena: &Arena,
    body: Body,
    bytes_max: u64,
    request: &RequestCell,
) -> Result<Buffer, CallError> {
    let mut buffer = arena.buffer(0)?;
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|error| {
            request.set_body_fault(&error);
            CallError::invalid(format!("the request body is too large or ended early: {error}"))
        })?;
        if (buffer.len() + frame.len()) as u64 > bytes_max {
            let text =
                format!("the request body has more than {bytes_max} bytes (limits.request_body_bytes)");
            return Err(CallError::exhausted(text));
        }
        buffer.reserve(frame.len())?;
        buffer.extend_from_slice(&frame)?;
    }
    Ok(buffer.freeze())
}

/// Fills in the one dimension that the guest left open.
fn infer_dimension(shape: &[u32], element_type: ElementType, bytes: usize) -> Result<Shape, CallError> {
    let mut open =
        shape.iter().enumerate().filter(|(_, dimension)| **dimension == INFERRED).map(|(at, _)| at);
    let Some(at) = open.next() else { return Shape::new(shape).map_err(CallError::invalid) };
    if open.next().is_some() {
        return Err(CallError::invalid("only one dimension can be left open"));
    }
    let mut known = shape.to_vec();
    known[at] = 1;
    let per_step = Shape::new(&known).map_err(CallError::invalid)?.element_count();
    let size_bytes = element_type
        .size_bytes()
        .ok_or_else(|| CallError::invalid("a BYTES tensor cannot leave a dimension open"))?;
    let step_bytes = per_step.saturating_mul(size_bytes as u64);
    if step_bytes == 0 || !(bytes as u64).is_multiple_of(step_bytes) {
        let text = format!("a body of {bytes} bytes is no whole number of {element_type} of shape {shape:?}");
        return Err(CallError::invalid(text));
    }
    known[at] = u32::try_from(bytes as u64 / step_bytes).map_err(CallError::invalid)?;
    Shape::new(&known).map_err(CallError::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_dimension_is_computed_from_the_length() {
        let infer =
            |shape: &[u32], bytes| infer_dimension(shape, ElementType::Fp32, bytes).ok().map(Vec::from);
        assert_eq!(infer(&[INFERRED, 2], 24), Some(vec![3, 2]));
        assert_eq!(infer(&[INFERRED], 0), Some(vec![0]));
        assert_eq!(infer(&[3], 24), Some(vec![3]));
        assert_eq!(infer(&[INFERRED, 2], 20), None);
        assert_eq!(infer(&[INFERRED, INFERRED], 16), None);
        assert_eq!(infer(&[INFERRED, 0], 0), None);
    }
}
