//! Packages that a machine needs before `cargo xtask` can install the rest.
//!
//! One list for three uses: the README states it, [`check`] checks it before long work starts, and
//! `cargo xtask fresh` installs only this list on a minimal Debian.

use crate::process;
use crate::setup::report;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// Debian package that the README requires.
pub(crate) struct Prerequisite {
    /// Name in Debian and Ubuntu.
    pub(crate) package: &'static str,
    /// Command that succeeds if the package is installed, on any distribution. Empty for packages
    /// that are required to build this program.
    probe: &'static [&'static str],
}

/// The README's prerequisites, except rustup.
pub(crate) const PREREQUISITES: [Prerequisite; 8] = [
    Prerequisite { package: "ca-certificates", probe: &[] },
    Prerequisite { package: "curl", probe: &["curl", "--version"] },
    Prerequisite { package: "gcc", probe: &[] },
    Prerequisite { package: "git", probe: &[] },
    Prerequisite { package: "libc6-dev", probe: &[] },
    Prerequisite {
        package: "python3",
        probe: &["python3", "-c", "import sys; sys.exit(sys.version_info < (3, 10))"],
    },
    Prerequisite { package: "python3-pip", probe: &["python3", "-m", "pip", "--version"] },
    Prerequisite { package: "python3-venv", probe: &["python3", "-c", "import ensurepip, venv"] },
];

/// Disk space of a first run of all tests, incremental builds included.
const TEST_DISK_GIB: u64 = 17;

/// Command that installs `packages` on Debian and Ubuntu.
pub(crate) fn install_command(packages: &[&str]) -> String {
    format!("apt-get install {}", packages.join(" "))
}

/// Checks that every prerequisite is installed.
///
/// # Errors
/// The error names all missing packages, and the command that installs them.
pub(crate) fn check() -> Result<()> {
    let missing = PREREQUISITES.iter().filter(|prerequisite| !prerequisite.is_installed());
    explain(&missing.map(|prerequisite| prerequisite.package).collect::<Vec<_>>())
}

/// Notes if the file system of `folder` has less space than a first run of all tests takes. Earlier
/// runs may have used the space already, so this is no error.
pub(crate) fn note_disk(folder: &Path) {
    let mut df = Command::new("df");
    df.args(["--output=avail", "--block-size=1G"]).arg(folder);
    let Ok(answer) = process::answer(&mut df) else { return };
    let free_gib = answer.lines().last().and_then(|line| line.trim().parse::<u64>().ok());
    if let Some(free_gib) = free_gib.filter(|free_gib| *free_gib < TEST_DISK_GIB) {
        let text = format!("{free_gib} GiB of disk are free, and a first run takes {TEST_DISK_GIB} GiB");
        report("note", &text);
    }
}

fn explain(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "missing on this machine: {}\n\nWhat to do: `{}` (Debian and Ubuntu, as root), or install the same from your distribution",
        missing.join(", "),
        install_command(missing)
    )
}

impl Prerequisite {
    fn is_installed(&self) -> bool {
        let Some((program, args)) = self.probe.split_first() else { return true };
        process::succeeds(Command::new(program).args(args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::Repo;

    #[test]
    fn readme_states_every_prerequisite() {
        let readme = std::fs::read_to_string(Repo::find().root().join("README.md")).unwrap();
        let command = install_command(&PREREQUISITES.map(|prerequisite| prerequisite.package));
        assert!(readme.contains(&command), "README.md should have `{command}`");
    }

    #[test]
    fn missing_packages_are_reported_with_the_install_command() {
        assert!(explain(&[]).is_ok());
        let error = explain(&["python3-pip", "python3-venv"]).unwrap_err().to_string();
        assert!(error.contains("`apt-get install python3-pip python3-venv`"), "{error}");
        let absent = Prerequisite { package: "absent", probe: &["no-such-program-as-this"] };
        assert!(!absent.is_installed());
    }
}
