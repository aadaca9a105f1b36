//! Functions in Rust: one cargo build for all.

use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use weir_provision::{Route, TARGET, Toolchain};

/// Builds the named functions, or the whole workspace if `names` is empty. Returns the components
/// by folder name.
pub(super) fn build(
    repo: &Repo,
    toolchain: &Toolchain,
    names: &[String],
) -> Result<BTreeMap<String, PathBuf>> {
    let mut cargo = repo.cargo("functions");
    cargo.args(["build", "--release", "--target", TARGET, "--message-format=json-render-diagnostics"]);
    // The functions' weir.toml files expect the default folder, even if this program was built
    // elsewhere.
    cargo.env_remove("CARGO_TARGET_DIR");
    if toolchain.route() == Route::Debian {
        // The compilers cannot share build artefacts.
        cargo.env("CARGO_TARGET_DIR", "target/debian");
    }
    if names.is_empty() {
        cargo.arg("--workspace");
    }
    for name in names {
        cargo.args(["--package", name]);
    }
    toolchain.configure(&mut cargo);
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", process::line(&cargo)))?;
    let mut built = BTreeMap::new();
    if let Some(messages) = child.stdout.take() {
        for line in BufReader::new(messages).lines() {
            built.extend(component(&line?));
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` failed ({status}); what it wrote is above", process::line(&cargo));
    }
    Ok(built)
}

/// Cargo's message about a build artefact.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    filenames: Vec<PathBuf>,
}

/// Extracts the component and its folder's name from a message of cargo. Returns `None` for other
/// messages.
fn component(message: &str) -> Option<(String, PathBuf)> {
    // Other messages lack these fields.
    let artifact: Artifact = serde_json::from_str(message).ok()?;
    let file =
        artifact.filenames.into_iter().find(|file| file.extension().is_some_and(|end| end == "wasm"))?;
    let folder = artifact.manifest_path.parent()?.file_name()?.to_str()?.to_owned();
    Some((folder, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_extracted_from_cargo_messages() {
        let of = |json: &str| component(json).map(|(name, file)| (name, file.display().to_string()));
        let function = r#"{"reason":"compiler-artifact","manifest_path":"/r/functions/a-b/Cargo.toml","filenames":["/t/a_b.wasm"]}"#;
        assert_eq!(of(function), Some(("a-b".into(), "/t/a_b.wasm".into())));
        let library = r#"{"reason":"compiler-artifact","manifest_path":"/x/serde/Cargo.toml","filenames":["/t/libserde.rlib"]}"#;
        assert_eq!(of(library), None);
        assert_eq!(of(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(of("warning: text"), None);
    }
}
