//! The packages that a machine needs before `cargo xtask` can install the rest.
//!
//! One list serves three readers: the README states it, [`check`] looks for it before long work starts, and `cargo xtask fresh`
//! installs it, and nothing else, on a minimal Debian.

use crate::process;
use anyhow::{Result, bail};
use std::process::Command;

/// A Debian package that the README asks for.
pub(crate) struct Prerequisite {
    /// Its name in Debian and Ubuntu.
    pub(crate) package: &'static str,
    /// A command that succeeds where the package is installed, under whatever name another distribution has it. Empty for packages
    /// without which this program would not have been built.
    probe: &'static [&'static str],
}

/// The README's prerequisites, besides rustup.
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

/// The command that installs `packages` on Debian and Ubuntu.
pub(crate) fn install_command(packages: &[&str]) -> String {
    format!("apt-get install {}", packages.join(" "))
}

/// Check that every prerequisite is installed.
///
/// # Errors
/// Names all missing packages at once, and the command that installs them.
pub(crate) fn check() -> Result<()> {
    let missing = PREREQUISITES.iter().filter(|prerequisite| !prerequisite.is_installed());
    explain(&missing.map(|prerequisite| prerequisite.package).collect::<Vec<_>>())
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
    fn missing_packages_are_named_with_the_command_that_installs_them() {
        assert!(explain(&[]).is_ok());
        let error = explain(&["python3-pip", "python3-venv"]).unwrap_err().to_string();
        assert!(error.contains("`apt-get install python3-pip python3-venv`"), "{error}");
        let absent = Prerequisite { package: "absent", probe: &["no-such-program-as-this"] };
        assert!(!absent.is_installed());
    }
}
