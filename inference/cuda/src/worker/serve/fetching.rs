//! Copies of device-resident tensors to the host.

use super::staying::Stayed;
use super::window::failed;
use crate::failure::weights_failure;
use crate::model::owner;
use crate::session::misfit;
use std::fs::File;
use std::sync::Arc;
use weir_device::Arena;
use weir_device::cuda::{Fetch, IntermediatePlace, Span};
use weir_inference::InferenceError;
use weir_types::TenantId;
use weir_worker::write_memory;

/// Size of a piece in bytes. The staging memory between the device and the connection's memory
/// holds two pieces.
const PIECE_BYTES: u64 = 4 << 20;

/// Copies a tensor of `tenant` to the start of a connection's memory. Returns its size in bytes.
pub(super) fn fetch(stayed: &Stayed, tenant: &TenantId, memory: &File) -> Result<u64, InferenceError> {
    // The tensor stays in place until the last copy has ended, even if the caller leaves early.
    let held = Arc::new(stayed.hold(owner(tenant))?);
    let span: Span = match held.place() {
        IntermediatePlace::Host(bytes) => {
            write_memory(memory, &bytes, 0).map_err(|error| failed(&error))?;
            return Ok(bytes.len() as u64);
        }
        IntermediatePlace::Device(span) => span,
    };
    let pieces = Arena::new(2 * PIECE_BYTES);
    let mut offset = 0;
    while offset < span.bytes() {
        let piece = span.slice(offset, PIECE_BYTES.min(span.bytes() - offset)).ok_or_else(misfit)?;
        // The run that produced the tensor has ended, so no ordering is needed.
        let fetched = stayed.gpu.transfers.fetch(piece, &pieces, Box::new(held.clone()));
        let bytes = fetched.and_then(Fetch::wait).map_err(|error| weights_failure(&error))?;
        write_memory(memory, &bytes, offset).map_err(|error| failed(&error))?;
        offset += piece.bytes();
    }
    Ok(span.bytes())
}
