//! Tensors that are kept under names, for other functions, inferences and clients to read.
//!
//! The function's manifest says which names it may read, and which it may put and delete:
//!
//! ```toml
//! [function.objects]
//! read = ["thresholds"]
//! write = ["session-*"]
//! ```
//!
//! ```no_run
//! # use weir::{Result, Tensor, objects};
//! # use std::time::Duration;
//! # fn example() -> Result<()> {
//! let thresholds = objects::get("thresholds")?.to_vec::<f32>()?;
//! let state = Tensor::from_slice(&thresholds, [thresholds.len()])?;
//! objects::put_for("session-7", &state, Duration::from_secs(600))?;
//! # Ok(())
//! # }
//! ```

use crate::bindings::imports::weir::inference::objects as raw;
use crate::{Result, Tensor};
use std::time::Duration;

/// The tensor that is kept under `name`, as it was put.
///
/// Fails with [`Error::NotFound`](crate::Error::NotFound) where there is none, or it has expired, and with
/// [`Error::NotGranted`](crate::Error::NotGranted).
pub fn get(name: &str) -> Result<Tensor> {
    Ok(Tensor(raw::get(name)?))
}

/// Keep a copy of `tensor` under `name`, in the place of what was there, for as long as the node's settings say. It is durable when this
/// returns.
///
/// Fails with [`Error::ResourceExhausted`](crate::Error::ResourceExhausted) where there is no room for it.
pub fn put(name: &str, tensor: &Tensor) -> Result<()> {
    Ok(raw::put(name, &tensor.0, None)?)
}

/// The same, for so long, counted in whole milliseconds.
pub fn put_for(name: &str, tensor: &Tensor, time: Duration) -> Result<()> {
    let ttl_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(raw::put(name, &tensor.0, Some(ttl_ms))?)
}

/// Let nobody find `name` any more.
pub fn delete(name: &str) -> Result<()> {
    Ok(raw::delete(name)?)
}
