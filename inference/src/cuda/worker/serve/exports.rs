//! Tensors that stay where they are for as long as the worker of another device reads them there.

use super::staying::Stayed;
use crate::cuda::lost;
use crate::error::InferenceError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_device::cuda::{Exported, Held, Owner};

/// The most at once. Each is of a run on another device, of which there are fewer.
const EXPORTS_MAX: usize = 256;

/// Those that there are, by the numbers that the node gave them.
#[derive(Default)]
pub(super) struct Exports(Mutex<HashMap<u64, (Arc<Stayed>, Held)>>);

impl Exports {
    /// Keep a tensor of `owner` where it is, and give the blocks that it lies in; why not, if it is not there, or in more blocks than that.
    pub(super) fn begin(
        &self,
        number: u64,
        stayed: Arc<Stayed>,
        owner: Owner,
        blocks_max: usize,
    ) -> Result<Result<Exported, String>, InferenceError> {
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
        let mut exports = self.lock();
        if exports.len() >= EXPORTS_MAX {
            return Ok(Err(format!("{EXPORTS_MAX} tensors are read by other devices already")));
        }
        exports.insert(number, (stayed, held));
        Ok(Ok(exported))
    }

    /// Nobody reads these any more.
    pub(super) fn end(&self, numbers: &[u64]) {
        let mut exports = self.lock();
        let ended: Vec<_> = numbers.iter().filter_map(|number| exports.remove(number)).collect();
        drop(exports);
        // Freed outside the lock.
        drop(ended);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Arc<Stayed>, Held)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
