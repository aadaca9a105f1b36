//! Errors of the device as errors of loads and runs.

use crate::weights::WeightsError;
use weir_device::cuda::{CudaError, TransferError};
use weir_inference::InferenceError;

/// Maps a device error to the error of the load or run.
pub(crate) fn failure(error: &CudaError) -> InferenceError {
    match error {
        error if error.is_context_lost() => lost(error),
        error if error.is_out_of_memory() => InferenceError::RunOutOfMemory(error.to_string().into()),
        _ => InferenceError::Run(error.to_string().into()),
    }
}

/// The error of work on a device that is lost.
pub(crate) fn lost(error: &CudaError) -> InferenceError {
    InferenceError::DeviceLost(error.to_string().into())
}

/// Maps an error of loading weights, including file errors, to the error of the load.
pub fn load_failure(error: &WeightsError) -> InferenceError {
    match error {
        WeightsError::Transfer(error) => weights_failure(error),
        error => InferenceError::Run(error.to_string().into()),
    }
}

/// Maps a transfer error to the error of the load or run.
pub fn weights_failure(error: &TransferError) -> InferenceError {
    match error {
        TransferError::Device(error) => failure(error),
        TransferError::Host(_) | TransferError::TooMany { .. } => {
            InferenceError::RunOutOfMemory(error.to_string().into())
        }
        error => InferenceError::Unavailable(error.to_string().into()),
    }
}
