//! Uploads of components and models, with limits on their number, size and time.

use super::Caller;
use super::error::ApiError;
use super::manifest::{self, UploadOptions};
use super::permits::TenantPermit;
use crate::NodeState;
use axum::extract::Request;
use serde::de::DeserializeOwned;
use std::time::Duration;
use weir_storage::blobs::{Blobs, PutError, Staged};
use weir_types::ErrorCode;

/// A completely received upload.
pub(super) struct ReceivedUpload<Manifest> {
    pub(super) manifest: Manifest,
    pub(super) options: UploadOptions,
    pub(super) staged: Staged,
    /// Permit to hold until the upload is processed.
    pub(super) place: TenantPermit,
}

/// Receives an upload of `caller` into a file in the folder of `blobs`. Fails above the limits on
/// concurrent uploads.
pub(super) async fn receive<Manifest: DeserializeOwned>(
    node: &NodeState,
    caller: &Caller,
    request: Request,
    blobs: &Blobs,
    bytes_max: u64,
) -> Result<ReceivedUpload<Manifest>, ApiError> {
    let place = node.permits.uploads.take(&caller.tenant, false)?;
    // Before the upload arrives, which takes longer.
    let announced_bytes = announced_bytes(&request).min(bytes_max);
    blobs.check_room(announced_bytes).await?;
    node.check_stored_bytes(&caller.tenant, announced_bytes)?;
    let receiving = async {
        let (manifest, options, upload) = manifest::read(request, bytes_max).await?;
        let staged = blobs.stage(upload, bytes_max).await.map_err(refusal)?;
        // The client may have announced no size, and others may have stored something meanwhile.
        node.check_stored_bytes(&caller.tenant, staged.bytes)?;
        Ok(ReceivedUpload { manifest, options, staged, place })
    };
    let time_ms_max = node.config.gateway.upload_timeout_ms;
    tokio::time::timeout(Duration::from_millis(time_ms_max), receiving).await.unwrap_or_else(|_| {
        let text = format!("the upload did not arrive within {time_ms_max} ms (gateway.upload_timeout_ms)");
        Err(ApiError::new(ErrorCode::DeadlineExceeded, text))
    })
}

/// The size of the body, if the client announces it.
fn announced_bytes(request: &Request) -> u64 {
    let length = request.headers().get(http::header::CONTENT_LENGTH);
    length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

fn refusal(error: PutError) -> ApiError {
    match error {
        PutError::TooLarge { bytes_max } => ApiError::new(
            ErrorCode::BodyTooLarge,
            format!("the upload has more than the {bytes_max} bytes that this node takes"),
        ),
        PutError::Source(why) => {
            ApiError::new(ErrorCode::BodyMismatch, format!("the upload did not arrive in full: {why}"))
        }
        PutError::DiskFull(full) => full.into(),
        PutError::Io(error) => ApiError::internal(&error),
    }
}
