//! Implements `weir:inference/objects`.

use super::bindings::weir::inference::objects::Host;
use super::bindings::weir::inference::tensors::Error as GuestError;
use super::tensors::push;
use super::{CallError, InferenceView};
use crate::ObjectAccessError;
use std::time::Instant;
use wasmtime::component::Resource;
use weir_call::until;
use weir_inference::Value;
use weir_types::{ErrorCode, Name};

impl Host for InferenceView<'_> {
    async fn put(
        &mut self,
        name: String,
        value: Resource<Value>,
        ttl_ms: Option<u64>,
    ) -> Result<(), CallError> {
        let name = parse(&name)?;
        let tensor = self.host_tensor(&value).await?;
        in_time(self.ctx.deadline, self.ctx.resources.put_object(&name, &tensor, ttl_ms)).await
    }

    async fn get(&mut self, name: String) -> Result<Resource<Value>, CallError> {
        let name = parse(&name)?;
        let tensor = in_time(self.ctx.deadline, self.ctx.resources.get_object(&name)).await?;
        push(self.ctx, self.table, tensor)
    }

    async fn delete(&mut self, name: String) -> Result<(), CallError> {
        let name = parse(&name)?;
        in_time(self.ctx.deadline, self.ctx.resources.remove_object(&name)).await
    }
}

/// Limits an operation to the invocation's deadline.
async fn in_time<T>(
    deadline: Instant,
    asked: impl Future<Output = Result<T, ObjectAccessError>>,
) -> Result<T, CallError> {
    let done = until(deadline, asked).await.ok_or(GuestError::DeadlineExceeded)?;
    Ok(done?)
}

fn parse(name: &str) -> Result<Name, CallError> {
    Name::new(name).map_err(CallError::invalid)
}

impl From<ObjectAccessError> for CallError {
    fn from(error: ObjectAccessError) -> Self {
        let text = error.to_string();
        let code = match error {
            ObjectAccessError::NotGranted(..) => return GuestError::NotGranted(text).into(),
            ObjectAccessError::Object { code, .. } => code,
        };
        let error = match code {
            ErrorCode::ObjectNotFound => GuestError::NotFound(text),
            ErrorCode::InvalidRequest => GuestError::InvalidArgument(text),
            ErrorCode::BodyTooLarge | ErrorCode::ObjectsFull | ErrorCode::DiskFull => {
                GuestError::ResourceExhausted(text)
            }
            ErrorCode::Unavailable => GuestError::Unavailable(text),
            _ => {
                tracing::error!(error = text, "internal error during an object access of a function");
                GuestError::Internal("internal error of the node; see the node's log".to_owned())
            }
        };
        error.into()
    }
}
