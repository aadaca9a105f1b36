//! The package for pip: a wheel with the program, which depends on the wheel of ONNX Runtime.

use super::{HOMEPAGE, Release, SUMMARY, libc};
use crate::dist::check::Package;
use crate::dist::third_party::{LICENCES, MATERIALS};
use crate::dist::{clear, copy};
use crate::process;
use crate::setup::{self, step};
use crate::weir::DemoNode;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::OnnxRuntimeRelease;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A package for pip.
pub(in crate::dist) struct Wheel(PathBuf);

impl Wheel {
    /// Makes the wheel of a release.
    pub(in crate::dist) fn pack(release: &Release) -> Result<Self> {
        let programs =
            setup::environment(release.repo, "packages", &release.sources().join("requirements.txt"))?;
        let folder = release.dist.join("wheel");
        clear(&folder)?;
        copy(&release.program(), &folder.join(format!("weir-{VERSION}.data/scripts/weir")))?;
        let info = folder.join(format!("weir-{VERSION}.dist-info"));
        for name in ["LICENSE", LICENCES] {
            copy(&release.folder.join(name), &info.join("licenses").join(name))?;
        }
        copy(&release.folder.join(MATERIALS), &info.join("sboms").join(MATERIALS))?;
        let tag = tag(libc::minor_needed(&release.program())?);
        let write = |name: &str, text: String| {
            std::fs::write(info.join(name), text).with_context(|| format!("cannot write {name} of the wheel"))
        };
        write("WHEEL", format!("Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\nTag: {tag}\n"))?;
        write("METADATA", metadata())?;
        let mut pack = Command::new(programs.join("python"));
        process::answer(pack.args(["-m", "wheel", "pack", "--dest-dir"]).arg(release.dist).arg(&folder))?;
        Ok(Self(release.dist.join(format!("weir-{VERSION}-{tag}.whl"))))
    }
}

impl Package for Wheel {
    fn name(&self) -> &'static str {
        "the package for pip"
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// Installs the wheel in an empty environment, where ONNX Runtime comes from its own wheel.
    fn start(&self, folder: &Path) -> Result<DemoNode> {
        let environment = folder.join("environment");
        step("pip install of the wheel in an empty environment");
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        process::run(pip.arg(&self.0))?;
        let mut command = Command::new(environment.join("bin/weir"));
        command.args(["up", "--listen", "127.0.0.1:0", "--no-deploy", "--data"]).arg(folder.join("data"));
        command.env_clear().env("HOME", folder).current_dir(folder);
        DemoNode::spawn(command)
    }
}

/// The wheel's tag: any Python 3, on Linux with version 2.`minor` of the C library or a newer one.
fn tag(minor: u32) -> String {
    format!("py3-none-manylinux_2_{minor}_{}", std::env::consts::ARCH)
}

/// The wheel's metadata: <https://packaging.python.org/en/latest/specifications/core-metadata/>.
fn metadata() -> String {
    let onnxruntime = OnnxRuntimeRelease::VERSION;
    format!(
        "Metadata-Version: 2.4\nName: weir\nVersion: {VERSION}\nSummary: {SUMMARY}\n\
         License-Expression: Apache-2.0\nLicense-File: LICENSE\nLicense-File: {LICENCES}\n\
         Project-URL: Homepage, {HOMEPAGE}\nRequires-Python: >=3.10\n\
         Requires-Dist: onnxruntime=={onnxruntime}\nDescription-Content-Type: text/markdown\n\n\
         The `weir` command. `weir up` starts a node, and `weir new` creates a function.\n\
         See [the documentation]({HOMEPAGE}).\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_a_header_and_a_description() {
        let metadata = metadata();
        let (header, description) = metadata.split_once("\n\n").unwrap();
        assert!(header.lines().all(|line| line.split_once(": ").is_some_and(|(_, value)| !value.is_empty())));
        assert!(header.contains("Requires-Dist: onnxruntime==1.") && description.contains("weir up"));
        assert!(tag(34).starts_with("py3-none-manylinux_2_34_"));
    }
}
