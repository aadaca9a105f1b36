//! `GET /v1/openapi.yaml`: the OpenAPI document of the API, from `docs/reference/openapi.yaml`.
//!
//! The end-to-end tests in `tests/tests/node/openapi.rs` compare the document with the answers of a
//! node.

use crate::ApiError;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use lzma_rust2::XzReader;
use std::io::{self, Read as _};
use std::sync::LazyLock;

pub(super) const PATH: &str = "/v1/openapi.yaml";

/// The document as `build.rs` packs it: an eighth of its size.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.yaml.xz"));

/// The document, unpacked for the first request.
static DOCUMENT: LazyLock<io::Result<Bytes>> = LazyLock::new(|| {
    let mut document = Vec::new();
    XzReader::new(PACKED, false).read_to_end(&mut document)?;
    Ok(document.into())
});

/// `GET /v1/openapi.yaml`.
pub(super) async fn document() -> Result<impl IntoResponse, ApiError> {
    let document = DOCUMENT.as_ref().map_err(|error| ApiError::internal(error))?;
    Ok(([(CONTENT_TYPE, "application/yaml")], document.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documented_paths;
    use std::collections::BTreeSet;

    /// Size limit of the packed document, which every program contains.
    const BYTES_MAX: usize = 32 << 10;
    const DOCUMENT: &str = include_str!("../../../docs/reference/openapi.yaml");

    /// Keys of `paths`, which are the only lines of the document that start with two spaces and a
    /// slash.
    fn paths() -> impl Iterator<Item = &'static str> {
        DOCUMENT
            .lines()
            .filter(|line| line.starts_with("  /"))
            .filter_map(|line| line.trim().strip_suffix(':'))
    }

    #[test]
    fn document_describes_every_route() {
        let described: BTreeSet<String> = paths().map(str::to_owned).collect();
        let served: BTreeSet<String> = documented_paths().into_iter().collect();
        let undocumented: Vec<_> = served.difference(&described).collect();
        let unknown: Vec<_> = described.difference(&served).collect();
        assert!(undocumented.is_empty(), "docs/reference/openapi.yaml lacks {undocumented:?}");
        assert!(unknown.is_empty(), "docs/reference/openapi.yaml has {unknown:?}, which no route serves");
        assert_eq!(described.len(), paths().count(), "docs/reference/openapi.yaml has a path twice");
    }

    #[test]
    fn packed_document_is_small_and_complete() {
        assert!(PACKED.len() <= BYTES_MAX, "docs/reference/openapi.yaml has {} bytes, packed", PACKED.len());
        assert_eq!(super::DOCUMENT.as_ref().unwrap(), DOCUMENT);
    }

    #[test]
    fn document_has_the_version_of_the_program() {
        let version = concat!("\n  version: ", env!("CARGO_PKG_VERSION"), "\n");
        assert!(DOCUMENT.contains(version), "set info.version of docs/reference/openapi.yaml");
    }
}
