//! The HTTP request being handled, as tensors. Works beside every HTTP library.

use crate::bindings::imports::weir::inference::request as raw;
use crate::{Element, ElementType, Result, Tensor, element};

/// A dimension that is whatever the body's length makes it, for [`take_body`].
pub const OPEN: usize = u32::MAX as usize;

/// Take the whole body of the request being handled as one tensor; it does not enter the function's memory.
///
/// One dimension may be [`OPEN`]. Fails where the body is not as long as the shape needs, and where it was taken or read before.
///
/// ```no_run
/// # use weir::{Model, Request, Response, Result};
/// fn handle(request: Request) -> Result<Response> {
///     let image = weir::take_body::<f32>([1, 3, 224, 224])?;
///     Ok(Response::tensor(Model::open("squeezenet")?.infer([("data", &image)])?.only()?))
/// }
/// ```
pub fn take_body<T: Element>(shape: impl AsRef<[usize]>) -> Result<Tensor> {
    take_body_as(T::TYPE, shape)
}

/// The same, for an element type that is known only when the function runs.
pub fn take_body_as(element_type: ElementType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
    let shape = element::dimensions(shape.as_ref())?;
    Ok(Tensor(raw::take_body_as_tensor(element_type, &shape)?))
}

/// Answer the request being handled with the bytes of `tensor`; they do not enter the function's memory.
///
/// For functions whose way in and out is another library: call it before that library sends its response, whose status and headers are kept
/// and whose body is replaced. With this crate's [`Response`](crate::Response), there is [`Response::tensor`](crate::Response::tensor).
pub fn reply_with(tensor: &Tensor) -> Result<()> {
    Ok(raw::reply_with_tensor(&tensor.0)?)
}
