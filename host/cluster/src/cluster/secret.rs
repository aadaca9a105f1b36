//! The shared secret by which the cluster's nodes authenticate to each other.

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::path::Path;
use weir_storage::read_private_file;
use weir_types::ContentHash;

/// The length of the shortest secret. For comparison: 128 bits in base64 take 22 characters.
const LEN_MIN: usize = 16;

/// The header that carries the secret.
pub(super) const SECRET: HeaderName = HeaderName::from_static("weir-cluster-secret");

/// The secret of a cluster.
#[derive(Clone)]
pub struct Secret {
    header: HeaderValue,
    /// Secrets are compared as hashes, so that the time of a comparison reveals nothing about the
    /// secret.
    hash: ContentHash,
}

impl Secret {
    /// Reads the first word of `file`. Without a file: the empty secret of a cluster on one
    /// machine.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else { return Ok(Self::from_header(HeaderValue::from_static(""))) };
        let text = read_private_file(path)
            .with_context(|| format!("cannot use the cluster's secret {}", path.display()))?;
        let word = text.split_whitespace().next().unwrap_or_default();
        if word.len() < LEN_MIN {
            bail!("the cluster's secret in {} has fewer than {LEN_MIN} characters", path.display());
        }
        let mut header = HeaderValue::from_str(word)
            .with_context(|| format!("the cluster's secret in {} is not plain text", path.display()))?;
        header.set_sensitive(true);
        Ok(Self::from_header(header))
    }

    fn from_header(header: HeaderValue) -> Self {
        let hash = ContentHash::from_content(header.as_bytes());
        Self { header, hash }
    }

    /// A fingerprint for the datastore that identifies the secret without revealing it.
    pub(super) fn mark(&self) -> ContentHash {
        ContentHash::from_content(format!("secret of a cluster {}", self.hash).as_bytes())
    }

    /// The value of the header.
    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Whether `headers` carry the secret. Removes it from them.
    pub fn is_shown(&self, headers: &mut HeaderMap) -> bool {
        headers.remove(SECRET).is_some_and(|shown| ContentHash::from_content(shown.as_bytes()) == self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn secret_that_other_users_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        set_mode(&path, 0o644);
        let refused = Secret::read(Some(&path)).map(|_| ()).unwrap_err();
        assert!(format!("{refused:#}").contains("chmod 600"), "{refused:#}");
        set_mode(&path, 0o640);
        assert!(Secret::read(Some(&path)).is_ok());
    }

    #[test]
    fn secret_has_a_minimum_length_and_must_match_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "too short\n").unwrap();
        set_mode(&path, 0o600);
        assert!(Secret::read(Some(&path)).is_err());
        assert!(Secret::read(Some(&folder.path().join("missing"))).is_err());
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let secret = Secret::read(Some(&path)).unwrap();
        let is_shown = |value: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(value.map(|value| (SECRET, HeaderValue::from_static(value))));
            let is_shown = secret.is_shown(&mut headers);
            assert!(headers.is_empty(), "the secret is passed on");
            is_shown
        };
        assert!(is_shown(Some("0123456789abcdef")));
        assert!(!is_shown(Some("0123456789abcdeX")));
        assert!(!is_shown(Some("")));
        assert!(!is_shown(None));
    }
}
