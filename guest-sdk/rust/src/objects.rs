//! Named objects: tensors stored under a name, which other functions, inferences and clients can
//! read.
//!
//! The function's manifest lists the names that the function may read, and the names that it may
//! put and delete:
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

/// Reads the tensor stored under `name`.
///
/// Fails with [`Error::NotFound`](crate::Error::NotFound) if the object does not exist or has
/// expired, and with [`Error::NotGranted`](crate::Error::NotGranted).
pub fn get(name: &str) -> Result<Tensor> {
    Ok(Tensor(raw::get(name)?))
}

/// Stores a copy of `tensor` under `name`, replacing an existing object, with the node's default
/// lifetime. The object is durable when the call returns.
///
/// Fails with [`Error::ResourceExhausted`](crate::Error::ResourceExhausted) if there is no space
/// for the object.
pub fn put(name: &str, tensor: &Tensor) -> Result<()> {
    Ok(raw::put(name, &tensor.0, None)?)
}

/// Same as [`put`], with the lifetime `time`, rounded down to whole milliseconds.
pub fn put_for(name: &str, tensor: &Tensor, time: Duration) -> Result<()> {
    let ttl_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(raw::put(name, &tensor.0, Some(ttl_ms))?)
}

/// Deletes the object `name`.
pub fn delete(name: &str) -> Result<()> {
    Ok(raw::delete(name)?)
}
