//! Exported tensors, which stay in place while the worker of another device reads them.

use super::staying::Stayed;
use crate::failure::lost;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use weir_device::cuda::{ExportedMemory, IntermediateGuard, MemoryOwner};
use weir_inference::InferenceError;

/// Maximum number of exports. Each belongs to a run on another device, and there are fewer runs.
const EXPORTS_MAX: usize = 256;

/// Exports by the numbers that the node assigned.
#[derive(Default)]
pub(super) struct Exports(Mutex<HashMap<u64, (Arc<Stayed>, IntermediateGuard)>>);

impl Exports {
    /// Exports a tensor of `owner`, and returns its blocks. Returns the reason if the tensor is not
    /// on the device, or has more than `blocks_max` blocks.
    pub(super) fn begin(
        &self,
        number: u64,
        stayed: Arc<Stayed>,
        owner: MemoryOwner,
        blocks_max: usize,
    ) -> Result<Result<ExportedMemory, String>, InferenceError> {
        let held = stayed.hold(owner)?;
        let exported = match held.export() {
            Ok(Some(exported)) if exported.blocks.len() <= blocks_max => exported,
            Ok(Some(exported)) => {
                return Ok(Err(format!("it lies in {} blocks of memory", exported.blocks.len())));
            }
            Ok(None) => return Ok(Err("it had to make room".to_owned())),
            Err(error) if error.is_context_lost() => return Err(lost(&error)),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let mut exports = self.0.lock();
        if exports.len() >= EXPORTS_MAX {
            return Ok(Err(format!("{EXPORTS_MAX} tensors are read by other devices already")));
        }
        exports.insert(number, (stayed, held));
        Ok(Ok(exported))
    }

    /// Ends exports.
    pub(super) fn end(&self, numbers: &[u64]) {
        let mut exports = self.0.lock();
        let ended: Vec<_> = numbers.iter().filter_map(|number| exports.remove(number)).collect();
        drop(exports);
        // Freed outside the lock.
        drop(ended);
    }
}
