//! `POST /v1/backup`.

use super::error::ApiError;
use super::permission::Caller;
use crate::state::NodeExtractor;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use weir_backup::BackupError;
use weir_types::ErrorCode;

/// `POST /v1/backup`: everything durable of the node or its cluster, of all tenants, as a tar file.
pub(super) async fn create(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    if !caller.is_backup && !node.access.serves_only(&caller.tenant) {
        let text = "this node serves several tenants, and a backup has the data of all of them: use a token of the tenant *backup of the token file";
        return Err(ApiError::new(ErrorCode::Forbidden, text));
    }
    let backup = node.backups.begin().await?;
    tracing::info!(tenant = %caller.tenant, "sending a backup");
    let headers = [
        (CONTENT_TYPE, "application/x-tar".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"weir-{}.tar\"", backup.created_at_ms())),
    ];
    Ok((headers, Body::from_stream(backup.into_stream())).into_response())
}

impl From<BackupError> for ApiError {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Busy => Self::new(ErrorCode::Conflict, error.to_string()),
            BackupError::Datastore(error) if error.is_temporary() => {
                Self::new(ErrorCode::Unavailable, error.to_string())
            }
            error => Self::internal(&error),
        }
    }
}
