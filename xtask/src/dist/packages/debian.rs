//! The package for Debian and Ubuntu: the program, ONNX Runtime, and a service of systemd.

use super::{HOMEPAGE, Release, SUMMARY, libc};
use crate::dist::check::Package;
use crate::dist::third_party::{LICENCES, MATERIALS};
use crate::dist::{clear, copy};
use crate::process;
use crate::setup::{report, step};
use crate::weir::DemoNode;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A package for Debian and Ubuntu.
pub(in crate::dist) struct DebianPackage(PathBuf);

impl DebianPackage {
    /// Makes the package of a release. `None` with a note if this machine has no `dpkg-deb`.
    pub(in crate::dist) fn pack(release: &Release) -> Result<Option<Self>> {
        if !process::succeeds(Command::new("dpkg-deb").arg("--version")) {
            report("skipped", "the Debian package: this machine has no `dpkg-deb`");
            return Ok(None);
        }
        let architecture = architecture()?;
        let folder = release.dist.join("debian");
        clear(&folder)?;
        let sources = release.sources();
        for (from, to) in [
            (release.program(), "usr/bin/weir"),
            (release.onnxruntime(), "usr/lib/weir/libonnxruntime.so"),
            (sources.join("weir.service"), "usr/lib/systemd/system/weir.service"),
            (sources.join("weir.toml"), "etc/weir/weir.toml"),
            (release.folder.join("LICENSE"), "usr/share/doc/weir/copyright"),
            (release.folder.join(LICENCES), &format!("usr/share/doc/weir/{LICENCES}")),
            (release.folder.join(MATERIALS), &format!("usr/share/doc/weir/{MATERIALS}")),
            (sources.join("postinst"), "DEBIAN/postinst"),
            (sources.join("prerm"), "DEBIAN/prerm"),
            (sources.join("postrm"), "DEBIAN/postrm"),
        ] {
            copy(&from, &folder.join(to))?;
        }
        let needed = libc::minor_needed(&release.program())?.max(libc::minor_needed(&release.onnxruntime())?);
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join("DEBIAN").join(name), text)
                .with_context(|| format!("cannot write {name} of the Debian package"))
        };
        write("conffiles", "/etc/weir/weir.toml\n")?;
        write("control", &control(architecture, needed))?;
        let package = release.dist.join(format!("weir_{VERSION}_{architecture}.deb"));
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&folder).arg(&package);
        process::answer(&mut build)?;
        Ok(Some(Self(package)))
    }
}

impl Package for DebianPackage {
    fn name(&self) -> &'static str {
        "the package for Debian"
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// Unpacks the package, and starts the node with the options of the service, but on a free port.
    fn start(&self, folder: &Path) -> Result<DemoNode> {
        step("unpacking the Debian package in an empty folder");
        process::run(Command::new("dpkg-deb").arg("--extract").arg(&self.0).arg(folder))?;
        let mut command = Command::new(folder.join("usr/bin/weir"));
        command.arg("up").arg("--config").arg(folder.join("etc/weir/weir.toml"));
        command.args(["--no-deploy", "--listen", "127.0.0.1:0", "--data"]).arg(folder.join("data"));
        command.env_clear().env("HOME", folder).current_dir(folder);
        DemoNode::spawn(command)
    }
}

/// Debian's name of this machine's architecture.
fn architecture() -> Result<&'static str> {
    Ok(match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("there is no Debian package for {other}"),
    })
}

/// The control file, for version 2.`minor` of the C library and newer ones.
fn control(architecture: &str, minor: u32) -> String {
    format!(
        "Package: weir\nVersion: {VERSION}\nArchitecture: {architecture}\n\
         Maintainer: Weir developers <{HOMEPAGE}>\n\
         Depends: libc6 (>= 2.{minor}), libgcc-s1, libstdc++6\nRecommends: tzdata\nSection: net\nPriority: optional\n\
         Homepage: {HOMEPAGE}\nDescription: {SUMMARY}\n \
         The service `weir` serves functions and models on this machine at 127.0.0.1:9347.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::Repo;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn control_file_states_the_c_library() {
        let control = control("amd64", 34);
        assert!(control.contains("Depends: libc6 (>= 2.34), ") && control.ends_with("9347.\n"), "{control}");
        assert!(control.lines().all(|line| line.starts_with(' ') || line.contains(": ")), "{control}");
    }

    #[test]
    fn maintainer_scripts_are_executable() {
        let sources = Repo::find().root().join("deploy/packages");
        for script in ["postinst", "prerm", "postrm"] {
            assert_eq!(
                sources.join(script).metadata().unwrap().permissions().mode() & 0o111,
                0o111,
                "{script}"
            );
        }
    }
}
