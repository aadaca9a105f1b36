//! Tensors as HTTP request and response bodies. Works together with any HTTP library.

use crate::bindings::imports::weir::inference::request as raw;
use crate::{Element, ElementType, Result, Tensor, element};

/// A dimension inferred from the length of the body, for [`take_body`].
pub const OPEN: usize = u32::MAX as usize;

/// Takes the whole body of the current request as one tensor. The body stays on the node and does
/// not enter guest memory.
///
/// One dimension may be [`OPEN`]. Fails if the body's length does not match the shape, and if the
/// body was already taken or read.
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

/// Same as [`take_body`], for an element type known only at run time.
pub fn take_body_as(element_type: ElementType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
    let shape = element::dimensions(shape.as_ref())?;
    Ok(Tensor(raw::take_body_as_tensor(element_type, &shape)?))
}

/// Uses the bytes of `tensor` as the body of the response. They stay on the node and do not enter
/// guest memory.
///
/// For functions that use another HTTP library. Call it before the library sends its response: the
/// response keeps its status and headers, and `tensor` replaces its body. With this crate's
/// [`Response`](crate::Response), use [`Response::tensor`](crate::Response::tensor).
pub fn reply_with(tensor: &Tensor) -> Result<()> {
    Ok(raw::reply_with_tensor(&tensor.0)?)
}
