//! The built files of the dashboard, which a node serves at `/ui`. The sources in TypeScript are in
//! `ui/src/`; `cargo xtask ui` builds them, and `build.rs` embeds the result.

use std::io::Read as _;

/// Command that builds the files of the dashboard, for error messages.
pub const BUILD_COMMAND: &str = "cargo xtask ui";

/// Path of the page itself.
pub const INDEX: &str = "index.html";

/// Size limit of an unpacked file, in bytes. `cargo xtask ui` refuses larger files.
const UNPACKED_BYTES_MAX: u64 = 4 << 20;

static FILES: &[DashboardFile] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// A file of the dashboard.
#[derive(Debug)]
pub struct DashboardFile {
    path: &'static str,
    /// Value of `content-type`.
    pub content_type: &'static str,
    /// Value of `etag`, with its quotes.
    pub etag: &'static str,
    /// Content, compressed with gzip.
    pub packed: &'static [u8],
}

impl DashboardFile {
    /// Finds a file by its path below `/ui/`.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Self> {
        FILES.iter().find(|file| file.path == path)
    }

    /// The content, for clients that do not accept gzip.
    pub fn unpack(&self) -> std::io::Result<Vec<u8>> {
        let mut content = Vec::new();
        flate2::read::GzDecoder::new(self.packed).take(UNPACKED_BYTES_MAX).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Whether the name of the file contains the hash of its content, so that its content never
    /// changes.
    #[must_use]
    pub fn is_immutable(&self) -> bool {
        self.path.starts_with("assets/")
    }
}

/// Whether the program contains the dashboard.
#[must_use]
pub fn is_built() -> bool {
    DashboardFile::find(INDEX).is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Size limit of all compressed files.
    const PACKED_BYTES_MAX: usize = 300_000;

    #[test]
    fn files_are_small_and_unpack_to_what_the_page_refers_to() {
        if !is_built() {
            return eprintln!("skipped: the dashboard is not built; `{BUILD_COMMAND}` builds it");
        }
        let packed: usize = FILES.iter().map(|file| file.packed.len()).sum();
        assert!(packed <= PACKED_BYTES_MAX, "the dashboard has {packed} bytes");
        let page = String::from_utf8(DashboardFile::find(INDEX).unwrap().unpack().unwrap()).unwrap();
        assert!(page.starts_with("<!doctype html>"), "{page}");
        for file in FILES.iter().filter(|file| file.is_immutable()) {
            assert!(!file.unpack().unwrap().is_empty() && file.etag.len() == 66, "{file:?}");
        }
        let linked = page.split('"').filter_map(|word| word.strip_prefix("/ui/"));
        let missing: Vec<_> = linked.filter(|path| DashboardFile::find(path).is_none()).collect();
        assert!(missing.is_empty(), "the page refers to {missing:?}");
    }

    #[test]
    fn unknown_paths_have_no_file() {
        for path in ["", "/", "../Cargo.toml", "index", "assets/"] {
            assert!(DashboardFile::find(path).is_none(), "{path:?}");
        }
    }
}
