//! `GET /v1/openapi.yaml`: the OpenAPI document of the API, from `docs/reference/openapi.yaml`.
//!
//! The end-to-end tests in `tests/tests/node/openapi.rs` compare the document with the answers of a
//! node.

use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;

pub(super) const PATH: &str = "/v1/openapi.yaml";

const DOCUMENT: &str = include_str!("../../../docs/reference/openapi.yaml");

/// `GET /v1/openapi.yaml`.
pub(super) async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/yaml")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documented_paths;
    use std::collections::BTreeSet;

    /// Size limit of the document, which every program contains.
    const BYTES_MAX: usize = 160 << 10;

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
    fn document_is_small() {
        assert!(DOCUMENT.len() <= BYTES_MAX, "docs/reference/openapi.yaml has {} bytes", DOCUMENT.len());
    }

    #[test]
    fn document_has_the_version_of_the_program() {
        let version = concat!("\n  version: ", env!("CARGO_PKG_VERSION"), "\n");
        assert!(DOCUMENT.contains(version), "set info.version of docs/reference/openapi.yaml");
    }
}
