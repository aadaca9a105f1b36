//! The component of a deployment: the body of the request, or the component of an earlier version.

use crate::NodeState;
use crate::error::ApiError;
use std::path::PathBuf;
use weir_storage::blobs::{Hold, Staged};
use weir_types::{ContentHash, ErrorCode, Name, TenantId};

/// The component of a deployment.
pub(super) enum ComponentSource {
    /// The body of the request.
    Sent(Staged),
    /// The component of an earlier version of the function.
    Stored {
        digest: ContentHash,
        bytes: u64,
        /// Protects the file if the earlier version is removed meanwhile.
        hold: Hold,
    },
}

impl ComponentSource {
    /// The component with the hash `digest`, or the component in the body without a hash. Only
    /// versions of the function itself count, so that a hash gives access to no other component.
    pub(super) fn find(
        node: &NodeState,
        tenant: &TenantId,
        name: &Name,
        staged: Staged,
        digest: Option<ContentHash>,
    ) -> Result<Self, ApiError> {
        let Some(digest) = digest else { return Ok(Self::Sent(staged)) };
        if staged.bytes > 0 {
            let text = "a deploy has either a component in its body or a digest in its query, not both";
            return Err(ApiError::new(ErrorCode::InvalidRequest, text));
        }
        // Before the look-up: a version that exists afterwards still has its file.
        let hold = node.blobs.in_use().hold([digest]);
        let entry = node.registry.get(tenant, name.as_str());
        let mut versions = entry.iter().flat_map(|entry| entry.versions.values());
        let known = versions.find(|version| version.record.digest == digest).ok_or_else(|| {
            let text =
                format!("no version of function {name} has the component {digest}; send the component");
            ApiError::new(ErrorCode::VersionNotFound, text)
        })?;
        Ok(Self::Stored { digest, bytes: known.record.component_bytes, hold })
    }

    /// SHA-256 of the component.
    pub(super) fn digest(&self) -> ContentHash {
        match self {
            Self::Sent(staged) => staged.digest,
            Self::Stored { digest, .. } => *digest,
        }
    }

    /// Size of the component.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Sent(staged) => staged.bytes,
            Self::Stored { bytes, .. } => *bytes,
        }
    }

    /// A file with the component, compared with its hash.
    pub(super) async fn file(&self, node: &NodeState) -> Result<PathBuf, ApiError> {
        match self {
            Self::Sent(staged) => Ok(staged.path().to_owned()),
            Self::Stored { digest, .. } => Ok(node.blobs.fetch_verified(*digest).await?),
        }
    }

    /// Makes the component durable. The hold protects it until a record refers to it.
    pub(super) async fn keep(self, node: &NodeState) -> Result<Hold, ApiError> {
        match self {
            Self::Sent(staged) => Ok(node.blobs.keep(staged).await?),
            Self::Stored { hold, .. } => Ok(hold),
        }
    }
}
