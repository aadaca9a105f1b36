//! Imports of tensors on other devices.

use super::window::failed;
use crate::device::Gpu;
use crate::failure::lost;
use crate::worker::message::{self, TensorRange};
use std::io;
use std::os::fd::OwnedFd;
use weir_device::cuda::{ExportedMemory, Imported};
use weir_inference::InferenceError;

/// Device whose memory cannot be read, with the reason.
pub(super) struct NotReached {
    pub(super) ordinal: u32,
    pub(super) why: String,
}

/// Maps tensors of other devices in order, from the files that came with the request. `files` is
/// `None` if this process could not open all files.
pub(super) fn import<'a>(
    gpu: &Gpu,
    elsewhere: impl IntoIterator<Item = &'a message::ExportedInput>,
    files: Option<Vec<OwnedFd>>,
) -> Result<Result<Vec<Imported>, NotReached>, InferenceError> {
    let mut imported = Vec::new();
    let mut files = files.map(Vec::into_iter);
    for exported in elsewhere {
        let ordinal = exported.ordinal;
        let TensorRange { blocks, offset, bytes } = exported.place;
        let Some(files) = &mut files else {
            let why = "this process may not open the files of its memory".to_owned();
            return Ok(Err(NotReached { ordinal, why }));
        };
        let blocks: Vec<OwnedFd> = files.take(blocks).collect();
        if blocks.len() != exported.place.blocks {
            return Err(failed(&io::ErrorKind::UnexpectedEof.into()));
        }
        match Imported::map(&gpu.context, &ExportedMemory { blocks, offset, bytes }) {
            Ok(mapped) => imported.push(mapped),
            Err(error) if error.is_context_lost() => return Err(lost(&error)),
            Err(error) => return Ok(Err(NotReached { ordinal, why: error.to_string() })),
        }
    }
    Ok(Ok(imported))
}
