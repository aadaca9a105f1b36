//! Embeds the files that `cargo xtask ui` has built in `ui/dist/`. Without them the program has no
//! dashboard, and needs neither Node.js nor npm to compile.

#![allow(clippy::expect_used, clippy::panic, reason = "a build script reports errors by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let crate_folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let dist = crate_folder.join("dist");
    // The folder exists in every checkout, so that Cargo can compare its time.
    println!("cargo::rerun-if-changed={}", dist.display());
    let list = std::fs::read_to_string(dist.join("files.tsv")).unwrap_or_default();
    std::fs::write(out.join("files.rs"), code(&dist, &list)).expect("the output folder is writable");
}

/// Rust code of the table of files, from lines of path, content type and hash.
fn code(dist: &Path, list: &str) -> String {
    let mut code = "&[\n".to_owned();
    for line in list.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [path, content_type, hash] = fields.as_slice() else {
            panic!("ui/dist/files.tsv has the unexpected line {line:?}; run `cargo xtask ui`");
        };
        let packed = dist.join(format!("{path}.gz"));
        let etag = format!("\"{hash}\"");
        writeln!(
            code,
            "DashboardFile {{ path: {path:?}, content_type: {content_type:?}, etag: {etag:?}, \
             packed: include_bytes!({packed:?}) }},"
        )
        .expect("strings can be written to");
    }
    code + "]"
}
