//! What nodes of a cluster show each other, so that nobody else passes for one.

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::path::Path;
use weir_types::ContentHash;

/// The shortest secret: 128 bits as base64 have 22 characters.
const LEN_MIN: usize = 16;

/// The header that it is shown in.
pub(crate) const SECRET: HeaderName = HeaderName::from_static("weir-cluster-secret");

/// The secret of a cluster.
#[derive(Clone)]
pub(crate) struct Secret {
    header: HeaderValue,
    /// Compared as a hash: how long that takes says nothing about the secret.
    hash: ContentHash,
}

impl Secret {
    /// The first word of `file`, or the empty secret of a cluster on one machine.
    pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else { return Ok(Self::of(HeaderValue::from_static(""))) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the cluster's secret {}", path.display()))?;
        let word = text.split_whitespace().next().unwrap_or_default();
        if word.len() < LEN_MIN {
            bail!("the cluster's secret in {} has fewer than {LEN_MIN} characters", path.display());
        }
        let mut header = HeaderValue::from_str(word)
            .with_context(|| format!("the cluster's secret in {} is not plain text", path.display()))?;
        header.set_sensitive(true);
        Ok(Self::of(header))
    }

    fn of(header: HeaderValue) -> Self {
        let hash = ContentHash::of(header.as_bytes());
        Self { header, hash }
    }

    /// What tells it from others, for the datastore, which does not need to know it.
    pub(super) fn mark(&self) -> ContentHash {
        ContentHash::of(format!("secret of a cluster {}", self.hash).as_bytes())
    }

    /// As it is shown.
    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Whether `headers` show it. It is taken out of them.
    pub(crate) fn is_shown(&self, headers: &mut HeaderMap) -> bool {
        headers.remove(SECRET).is_some_and(|shown| ContentHash::of(shown.as_bytes()) == self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_enough_and_shown_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "too short\n").unwrap();
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
