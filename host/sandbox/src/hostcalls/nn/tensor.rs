//! Implements `wasi:nn/tensor`.

use super::bindings::wasi::nn::errors::ErrorCode;
use super::bindings::wasi::nn::tensor::{Host, HostTensor, TensorType};
use super::errors::{NnError, NnFailure};
use crate::hostcalls::{CallError, InferenceCtx, InferenceView};
use wasmtime::component::Resource;
use weir_inference::Tensor;
use weir_types::{ElementType, Shape};

/// A tensor that a guest holds.
pub struct NnTensor {
    dimensions: Vec<u32>,
    element_type: TensorType,
    /// The tensor, or why it is invalid: the constructor cannot fail, so the first use reports the
    /// error.
    content: Result<Tensor, NnError>,
}

impl NnTensor {
    /// Wraps an output of a model, and charges it against the invocation's tensor bytes.
    pub(super) fn from_tensor(tensor: Tensor, ctx: &mut InferenceCtx) -> Result<Self, NnFailure> {
        let element_type = tensor_type(tensor.element_type()).ok_or_else(|| {
            let text = format!("wasi:nn has no tensors of {}", tensor.element_type());
            NnError::new(ErrorCode::UnsupportedOperation, text)
        })?;
        ctx.charge(tensor.data().len() as u64)?;
        Ok(Self { dimensions: tensor.shape().dimensions().to_vec(), element_type, content: Ok(tensor) })
    }

    /// Takes the tensor from the guest.
    pub(super) fn take(self, ctx: &mut InferenceCtx) -> Result<Tensor, NnError> {
        let tensor = self.content?;
        ctx.tensor_bytes_left += tensor.data().len() as u64;
        Ok(tensor)
    }

    fn new(
        dimensions: Vec<u32>,
        element_type: TensorType,
        data: &[u8],
        ctx: &mut InferenceCtx,
    ) -> Result<Self, wasmtime::Error> {
        let content = content(&dimensions, element_type, data, ctx);
        let content = match content.map_err(NnFailure::from) {
            Ok(tensor) => Ok(tensor),
            Err(NnFailure::Guest(error)) => Err(error),
            Err(NnFailure::Trap(error)) => return Err(error),
        };
        Ok(Self { dimensions, element_type, content })
    }
}

fn content(
    dimensions: &[u32],
    element_type: TensorType,
    data: &[u8],
    ctx: &mut InferenceCtx,
) -> Result<Tensor, CallError> {
    let shape = Shape::new(dimensions).map_err(CallError::invalid)?;
    let data = ctx.arena.copy_of(data)?;
    let tensor = Tensor::new(element_type_of(element_type), shape, data).map_err(CallError::invalid)?;
    ctx.charge(tensor.data().len() as u64)?;
    Ok(tensor)
}

fn element_type_of(of: TensorType) -> ElementType {
    match of {
        TensorType::Fp16 => ElementType::Fp16,
        TensorType::Fp32 => ElementType::Fp32,
        TensorType::Fp64 => ElementType::Fp64,
        TensorType::Bf16 => ElementType::Bf16,
        TensorType::U8 => ElementType::Uint8,
        TensorType::I32 => ElementType::Int32,
        TensorType::I64 => ElementType::Int64,
    }
}

/// The `wasi:nn` name of a type, if it has one.
pub(super) fn tensor_type(of: ElementType) -> Option<TensorType> {
    Some(match of {
        ElementType::Fp16 => TensorType::Fp16,
        ElementType::Fp32 => TensorType::Fp32,
        ElementType::Fp64 => TensorType::Fp64,
        ElementType::Bf16 => TensorType::Bf16,
        ElementType::Uint8 => TensorType::U8,
        ElementType::Int32 => TensorType::I32,
        ElementType::Int64 => TensorType::I64,
        _ => return None,
    })
}

impl Host for InferenceView<'_> {}

impl HostTensor for InferenceView<'_> {
    fn new(
        &mut self,
        dimensions: Vec<u32>,
        element_type: TensorType,
        data: Vec<u8>,
    ) -> wasmtime::Result<Resource<NnTensor>> {
        let tensor = NnTensor::new(dimensions, element_type, &data, self.ctx)?;
        Ok(self.table.push(tensor)?)
    }

    fn dimensions(&mut self, tensor: Resource<NnTensor>) -> wasmtime::Result<Vec<u32>> {
        Ok(self.table.get(&tensor)?.dimensions.clone())
    }

    fn ty(&mut self, tensor: Resource<NnTensor>) -> wasmtime::Result<TensorType> {
        Ok(self.table.get(&tensor)?.element_type)
    }

    /// The tensor's bytes; empty if the tensor is invalid.
    fn data(&mut self, tensor: Resource<NnTensor>) -> wasmtime::Result<Vec<u8>> {
        let content = &self.table.get(&tensor)?.content;
        Ok(content.as_ref().map(|tensor| tensor.data().to_vec()).unwrap_or_default())
    }

    fn drop(&mut self, tensor: Resource<NnTensor>) -> wasmtime::Result<()> {
        // An error of an invalid tensor no longer matters.
        let _ = self.table.delete(tensor)?.take(self.ctx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wasi_nn_types_convert_to_element_types_and_back() {
        use TensorType as T;
        for of in [T::Fp16, T::Fp32, T::Fp64, T::Bf16, T::U8, T::I32, T::I64] {
            assert_eq!(tensor_type(element_type_of(of)), Some(of));
        }
        assert_eq!(tensor_type(ElementType::Bytes), None);
    }
}
