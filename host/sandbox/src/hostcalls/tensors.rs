//! Implements `weir:inference/tensors`.

use super::bindings::weir::inference::tensors::{
    ElementType as GuestType, Error as GuestError, Host, HostTensor,
};
use super::{CallError, InferenceCtx, InferenceView};
use wasmtime::component::{Resource, ResourceTable};
use weir_inference::Tensor;
use weir_types::{ElementType, Shape};

macro_rules! element_types {
    ($($name:ident),*) => {
        impl From<GuestType> for ElementType {
            fn from(element_type: GuestType) -> Self {
                match element_type { $(GuestType::$name => Self::$name,)* }
            }
        }
        impl From<ElementType> for GuestType {
            fn from(element_type: ElementType) -> Self {
                match element_type { $(ElementType::$name => Self::$name,)* }
            }
        }
    };
}

element_types!(Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Bf16, Fp32, Fp64, Bytes);

/// Adds `tensor` to the guest's handles, and charges it against the invocation's tensor bytes.
pub(super) fn push(
    ctx: &mut InferenceCtx,
    table: &mut ResourceTable,
    tensor: Tensor,
) -> Result<Resource<Tensor>, CallError> {
    ctx.charge(tensor.data().len() as u64)?;
    Ok(table.push(tensor)?)
}

impl InferenceCtx {
    /// Deducts `bytes` from the guest's limit.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), CallError> {
        self.tensor_bytes_left = self.tensor_bytes_left.checked_sub(bytes).ok_or_else(|| {
            CallError::exhausted(format!(
                "the tensors would take more than {} bytes (limits.tensor_bytes)",
                self.tensor_bytes_max
            ))
        })?;
        Ok(())
    }
}

impl Host for InferenceView<'_> {
    fn convert_error(&mut self, error: CallError) -> wasmtime::Result<GuestError> {
        self.convert(error)
    }
}

impl HostTensor for InferenceView<'_> {
    fn from_bytes(
        &mut self,
        element_type: GuestType,
        shape: Vec<u32>,
        data: Vec<u8>,
    ) -> Result<Resource<Tensor>, CallError> {
        let shape = Shape::new(&shape).map_err(CallError::invalid)?;
        let data = self.ctx.arena.copy_of(&data)?;
        let tensor = Tensor::new(element_type.into(), shape, data).map_err(CallError::invalid)?;
        push(self.ctx, self.table, tensor)
    }

    fn element_type(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<GuestType> {
        Ok(self.table.get(&tensor)?.element_type().into())
    }

    fn shape(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<Vec<u32>> {
        Ok(self.table.get(&tensor)?.shape().dimensions().to_vec())
    }

    fn byte_length(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<u64> {
        Ok(self.table.get(&tensor)?.data().len() as u64)
    }

    fn read(&mut self, tensor: Resource<Tensor>, offset: u64, length: u64) -> Result<Vec<u8>, CallError> {
        let data = self.table.get(&tensor)?.data();
        let range = offset
            .checked_add(length)
            .filter(|&end| end <= data.len() as u64)
            .map(|end| offset as usize..end as usize);
        let bytes = range.and_then(|range| data.get(range)).ok_or_else(|| {
            CallError::invalid(format!(
                "cannot read {length} bytes from {offset} on: the tensor has {}",
                data.len()
            ))
        })?;
        Ok(bytes.to_vec())
    }

    fn drop(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<()> {
        let tensor = self.table.delete(tensor)?;
        self.ctx.tensor_bytes_left += tensor.data().len() as u64;
        Ok(())
    }
}
