//! Implements `weir:inference/tensors`.
//!
//! Outputs of models stay on their device until the guest reads them, or until the invocation ends:
//! see [`Value`]. Runs on that device read them in place.

use super::bindings::weir::inference::tensors::{
    ElementType as GuestType, Error as GuestError, Host, HostTensor,
};
use super::{CallError, InferenceCtx, InferenceView};
use wasmtime::component::{Resource, ResourceTable};
use weir_call::until;
use weir_inference::{InferenceError, Tensor, Value};
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
    tensor: impl Into<Value>,
) -> Result<Resource<Value>, CallError> {
    let value = tensor.into();
    ctx.charge(value.bytes())?;
    Ok(table.push(value)?)
}

/// The tensor in host memory. Copies it from its device if necessary.
pub(crate) async fn to_host(value: Value) -> Result<Tensor, InferenceError> {
    let tensor = match value {
        Value::Host(tensor) => return Ok(tensor),
        Value::Device(tensor) => tensor,
    };
    let fetched = tokio::task::spawn_blocking(move || tensor.to_host()).await;
    fetched.unwrap_or_else(|_| Err(InferenceError::Unavailable("the node is shutting down".into())))
}

impl InferenceView<'_> {
    /// The guest's tensor in host memory. From then on, it is no longer on its device.
    pub(super) async fn host_tensor(&mut self, handle: &Resource<Value>) -> Result<Tensor, CallError> {
        let value = self.table.get(handle)?.clone();
        let is_on_device = value.device().is_some();
        let tensor = until(self.ctx.deadline, to_host(value)).await.ok_or(GuestError::DeadlineExceeded)??;
        if is_on_device {
            *self.table.get_mut(handle)? = tensor.clone().into();
        }
        Ok(tensor)
    }
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
    ) -> Result<Resource<Value>, CallError> {
        let shape = Shape::new(&shape).map_err(CallError::invalid)?;
        let data = self.ctx.arena.copy_of(&data)?;
        let tensor = Tensor::new(element_type.into(), shape, data).map_err(CallError::invalid)?;
        push(self.ctx, self.table, tensor)
    }

    fn element_type(&mut self, tensor: Resource<Value>) -> wasmtime::Result<GuestType> {
        Ok(self.table.get(&tensor)?.element_type().into())
    }

    fn shape(&mut self, tensor: Resource<Value>) -> wasmtime::Result<Vec<u32>> {
        Ok(self.table.get(&tensor)?.shape().dimensions().to_vec())
    }

    fn byte_length(&mut self, tensor: Resource<Value>) -> wasmtime::Result<u64> {
        Ok(self.table.get(&tensor)?.bytes())
    }

    async fn read(
        &mut self,
        tensor: Resource<Value>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, CallError> {
        let whole = self.table.get(&tensor)?.bytes();
        let past_the_end = || {
            CallError::invalid(format!("cannot read {length} bytes from {offset} on: the tensor has {whole}"))
        };
        let end = offset.checked_add(length).filter(|&end| end <= whole).ok_or_else(past_the_end)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let tensor = self.host_tensor(&tensor).await?;
        let bytes = tensor.data().get(offset as usize..end as usize).ok_or_else(past_the_end)?;
        Ok(bytes.to_vec())
    }

    fn drop(&mut self, tensor: Resource<Value>) -> wasmtime::Result<()> {
        let value = self.table.delete(tensor)?;
        self.ctx.tensor_bytes_left += value.bytes();
        Ok(())
    }
}
