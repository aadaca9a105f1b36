//! The package for npm: the program, and ONNX Runtime in the same folder.

use super::{HOMEPAGE, Release, SUMMARY};
use crate::dist::check::Package;
use crate::dist::third_party::{LICENCES, MATERIALS};
use crate::dist::{clear, copy};
use crate::process;
use crate::setup::{report, step};
use crate::weir::DemoNode;
use anyhow::{Context as _, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A package for npm.
pub(in crate::dist) struct NpmPackage(PathBuf);

impl NpmPackage {
    /// Makes the package of a release. `None` with a note if this machine has no npm.
    pub(in crate::dist) fn pack(release: &Release) -> Result<Option<Self>> {
        if !process::succeeds(Command::new("npm").arg("--version")) {
            report("skipped", "the npm package: this machine has no `npm`");
            return Ok(None);
        }
        let cpu = cpu()?;
        let folder = release.dist.join("npm/package");
        clear(&folder)?;
        for (from, to) in [
            (release.program(), "bin/weir"),
            (release.onnxruntime(), "lib/libonnxruntime.so"),
            (release.folder.join("LICENSE"), "LICENSE"),
            (release.folder.join(LICENCES), LICENCES),
            (release.folder.join(MATERIALS), MATERIALS),
        ] {
            copy(&from, &folder.join(to))?;
        }
        let write = |name: &str, text: String| {
            std::fs::write(folder.join(name), text)
                .with_context(|| format!("cannot write {name} of the npm package"))
        };
        write("package.json", manifest(cpu))?;
        write("README.md", readme())?;
        let package = release.dist.join(format!("weir-{VERSION}-linux-{cpu}.tgz"));
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "--numeric-owner", "-C"]).arg(release.dist.join("npm"));
        process::run(tar.arg("-czf").arg(&package).arg("package"))?;
        Ok(Some(Self(package)))
    }
}

impl Package for NpmPackage {
    fn name(&self) -> &'static str {
        "the package for npm"
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// Installs the package globally in an empty prefix, without a network, and starts the command
    /// that npm links.
    fn start(&self, folder: &Path) -> Result<DemoNode> {
        step("npm install of the package in an empty folder");
        let prefix = folder.join("prefix");
        let mut npm = Command::new("npm");
        npm.args(["install", "--global", "--offline", "--no-audit", "--no-fund", "--silent", "--prefix"]);
        process::run(npm.arg(&prefix).arg(&self.0).env("HOME", folder).current_dir(folder))?;
        let mut command = Command::new(prefix.join("bin/weir"));
        command.args(["up", "--listen", "127.0.0.1:0", "--no-deploy", "--data"]).arg(folder.join("data"));
        command.env_clear().env("HOME", folder).current_dir(folder);
        DemoNode::spawn(command)
    }
}

/// npm's name of this machine's architecture.
fn cpu() -> Result<&'static str> {
    Ok(match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => bail!("there is no npm package for {other}"),
    })
}

/// The manifest. npm refuses to install the package on other systems.
fn manifest(cpu: &str) -> String {
    let manifest = json!({
        "name": "@weir-platform/weir",
        "version": VERSION,
        "description": SUMMARY,
        "license": "Apache-2.0",
        "homepage": HOMEPAGE,
        "bin": { "weir": "bin/weir" },
        "files": ["bin", "lib", LICENCES, MATERIALS],
        "os": ["linux"],
        "cpu": [cpu],
        "libc": ["glibc"],
    });
    format!("{manifest:#}\n")
}

/// The page of the package.
fn readme() -> String {
    format!(
        "# Weir\n\n{SUMMARY}.\n\n`weir up` starts a node, and `weir new` creates a function. See [the\n\
         documentation]({HOMEPAGE}).\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn manifest_links_the_command_on_systems_that_run_it() {
        let manifest: Value = serde_json::from_str(&manifest("x64")).unwrap();
        assert_eq!(manifest["bin"]["weir"], "bin/weir");
        assert_eq!((&manifest["os"][0], &manifest["cpu"][0]), (&json!("linux"), &json!("x64")));
        assert_eq!(manifest["version"], VERSION);
        for name in [LICENCES, MATERIALS] {
            assert!(manifest["files"].as_array().unwrap().contains(&json!(name)), "{name}");
        }
    }
}
