//! Base system of fresh machines: a minimal Debian with the README's prerequisites.

use crate::prerequisites::PREREQUISITES;
use crate::process;
use crate::repo::Repo;
use crate::setup::{report, step};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::Stamp;

/// Files of this machine that are copied into the base system, so that it reaches the same package
/// registries: name resolution, certificates, and the settings of apt, pip and npm.
const SETTINGS: [&str; 8] = [
    "/etc/apt/apt.conf.d",
    "/etc/apt/sources.list.d",
    "/etc/hosts",
    "/etc/npmrc",
    "/etc/pip.conf",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
    "/usr/local/share/ca-certificates",
];

/// Debian system in a folder. Runs use copies of it.
pub(super) struct Base {
    folder: PathBuf,
}

impl Base {
    /// Opens the base system. Creates it if it is missing, was created for other prerequisites, or
    /// should be renewed.
    ///
    /// # Errors
    /// Fails without root or debootstrap, or if a package cannot be installed. Each error explains
    /// what to do.
    pub(super) fn open(repo: &Repo, renew: bool) -> Result<Self> {
        if !process::succeeds(Command::new("sh").args(["-c", r#"test "$(id -u)" = 0"#])) {
            bail!("only root can make and enter a fresh machine\n\nWhat to do: run the same command as root");
        }
        let release = Release::of_this_machine()?;
        let packages = PREREQUISITES.map(|prerequisite| prerequisite.package).join(",");
        let content = format!("{} {} {packages}\n", release.codename, release.mirror);
        let folder = repo.local().join("fresh/base");
        let stamp = Stamp::beside(&folder, &content);
        if stamp.is_current() && !renew {
            report("found", &format!("a minimal Debian ({}) in {}", release.codename, repo.show(&folder)));
            return Ok(Self { folder });
        }
        if !process::succeeds(Command::new("debootstrap").arg("--version")) {
            bail!(
                "debootstrap is missing, which makes the fresh machine\n\nWhat to do: `apt-get install debootstrap`"
            );
        }
        stamp.clear()?;
        remove(&folder)?;
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        release.install(&folder, &packages)?;
        stamp.write()?;
        report("made", &format!("a minimal Debian ({}) in {}", release.codename, repo.show(&folder)));
        Ok(Self { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Debian release and its package mirror.
struct Release {
    codename: String,
    mirror: String,
}

impl Release {
    fn of_this_machine() -> Result<Self> {
        let system = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
        let codename = value_of(&system, "VERSION_CODENAME=").context(
            "/etc/os-release names no release of Debian; `cargo xtask fresh` runs on Debian and Ubuntu",
        )?;
        let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
        let listed = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        files.extend(
            listed
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|end| end == "list" || end == "sources")),
        );
        let mirror = files.iter().find_map(|file| mirror(&fs::read_to_string(file).ok()?));
        let mirror = mirror.context("apt has no source of packages; see /etc/apt/sources.list.d")?;
        Ok(Self { codename: codename.to_owned(), mirror })
    }

    /// Installs the system with `packages`, and copies this machine's registry settings.
    fn install(&self, folder: &Path, packages: &str) -> Result<()> {
        step(&format!("debootstrap --variant=minbase --include={packages} {}", self.codename));
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", &format!("--include={packages}"), &self.codename]);
        process::answer(debootstrap.arg(folder).arg(&self.mirror))?;
        for path in SETTINGS.map(Path::new).into_iter().filter(|path| path.exists()) {
            let place = folder.join(path.strip_prefix("/")?);
            if let Some(above) = place.parent() {
                fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
            }
            // Folder contents are merged into the system's; links are followed, because their
            // targets may be missing there.
            process::answer(
                Command::new("cp").args(["-RLpT", "--remove-destination", "--"]).arg(path).arg(&place),
            )?;
        }
        Ok(())
    }
}

/// Removes a folder recursively, if it exists.
pub(super) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The first mirror in an apt source file, in either of its formats.
fn mirror(sources: &str) -> Option<String> {
    sources.lines().map(str::trim).find_map(|line| {
        let listed = line.strip_prefix("deb ").or_else(|| line.strip_prefix("URIs:"))?;
        let url = listed.split_whitespace().find(|word| word.contains("://"))?;
        Some(url.to_owned())
    })
}

fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_found_in_both_formats() {
        let sources = "Types: deb\nURIs: http://one.example/debian\nSuites: x\n";
        assert_eq!(mirror(sources).as_deref(), Some("http://one.example/debian"));
        let list = "# deb http://no.example\ndeb [signed-by=/k] https://two.example/debian x main\n";
        assert_eq!(mirror(list).as_deref(), Some("https://two.example/debian"));
        assert_eq!(mirror("Types: deb\n"), None);
    }

    #[test]
    fn release_is_read_without_quotes() {
        let text = "NAME=\"Debian\"\nVERSION_CODENAME=\"bookworm\"\n";
        assert_eq!(value_of(text, "VERSION_CODENAME="), Some("bookworm"));
        assert_eq!(value_of(text, "ABSENT="), None);
    }
}
