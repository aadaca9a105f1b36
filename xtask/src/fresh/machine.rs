//! One fresh machine: a copy of the base system with a clone of the project, for one command.

use super::base::{Base, remove};
use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Path of the project on the machine.
const PROJECT: &str = "/src/weir";

/// Mounts the kernel's file systems and rustup in the root `$1`, and executes the rest of the
/// command line there. `$2` is rustup's folder, `$3` an empty folder for writes to it. The mounts
/// belong to the namespace and end with it. The root replaces that of the namespace, because the
/// kernel refuses namespaces of users to processes in a changed root.
const ENTER: &str = r#"
root=$1 rustup=$2 written=$3; shift 3
mount --make-rprivate / && mount --bind "$root" "$root" || exit 125
mount -t overlay weir-rustup -o "lowerdir=$rustup,upperdir=$written/upper,workdir=$written/work" "$root/root/.rustup" 2>/dev/null \
  || { mount --bind "$rustup" "$root/root/.rustup" && mount -o remount,bind,ro "$root/root/.rustup"; } || exit 125
mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" || exit 125
cd "$root" && pivot_root . . && umount -l . || exit 125
exec "$@"
"#;

/// Search path of root on the machine, whose home in Debian is `/root`: rustup's and the system's
/// programs.
const PATH: &str = "/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Environment variables with this machine's proxy settings.
const NETWORK_VARIABLES: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// Machine in a folder. Removed by [`remove`](Self::remove), or by the next run after a kill.
pub(super) struct FreshMachine {
    folder: PathBuf,
    rustup: PathBuf,
}

impl FreshMachine {
    /// Copies `base` and clones the last commit of `repo` into the copy.
    pub(super) fn copy_of(base: &Base, repo: &Repo) -> Result<Self> {
        let runs = repo.local().join("fresh/runs");
        remove_abandoned(&runs)?;
        let home = env::home_dir().context("there is no home folder, and so no rustup in it")?;
        let at =
            |variable: &str, name: &str| env::var_os(variable).map_or_else(|| home.join(name), PathBuf::from);
        let rustup = at("RUSTUP_HOME", ".rustup");
        let cargo = at("CARGO_HOME", ".cargo");
        let machine = Self { folder: runs.join(std::process::id().to_string()), rustup };
        let root = machine.root();
        for folder in [root.clone(), machine.written().join("upper"), machine.written().join("work")] {
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        process::answer(
            Command::new("cp").args(["-aT", "--reflink=auto", "--"]).arg(base.folder()).arg(&root),
        )?;
        machine.bring_rustup(&cargo)?;
        let clone = root.join(PROJECT.trim_start_matches('/'));
        process::answer(Command::new("git").args(["clone", "--quiet", "--"]).arg(repo.root()).arg(clone))?;
        Ok(machine)
    }

    /// Runs `command` in the clone until it ends. Ctrl-C ends the command, but not this program.
    pub(super) fn run(&self, command: &[String]) -> Result<ExitStatus> {
        let mut enter = Command::new("unshare");
        enter.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ENTER, "sh"]);
        enter.arg(self.root()).arg(&self.rustup).arg(self.written());
        enter.args(["env", "--chdir", PROJECT]).args(command);
        enter.env_clear().env("PATH", PATH).env("HOME", "/root");
        enter.envs(
            ["DEBIAN_FRONTEND=noninteractive", "RUSTUP_AUTO_INSTALL=0"]
                .iter()
                .filter_map(|pair| pair.split_once('=')),
        );
        enter.envs(NETWORK_VARIABLES.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
                .context("cannot handle Ctrl-C")?;
        }
        enter.status().context("cannot start `unshare` (Debian and Ubuntu: `apt-get install util-linux`)")
    }

    /// Keeps the machine beyond later runs. Returns the folder of its root.
    pub(super) fn keep(self) -> PathBuf {
        let kept = self.folder.with_extension("kept");
        match fs::rename(&self.folder, &kept) {
            Ok(()) => kept.join("root"),
            Err(_) => self.root(),
        }
    }

    /// Removes the machine. Its mounts ended with its processes.
    pub(super) fn remove(self) -> Result<()> {
        remove(&self.folder)
    }

    /// Copies rustup's programs and cargo's settings, but not cargo's caches.
    fn bring_rustup(&self, cargo: &Path) -> Result<()> {
        let home = self.root().join("root");
        for folder in [home.join(".cargo/bin"), home.join(".rustup")] {
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let programs = cargo.join("bin");
        let listed =
            fs::read_dir(&programs).with_context(|| format!("no rustup in {}", programs.display()))?;
        let is_rustups = |path: &PathBuf| {
            path.ends_with("rustup") || fs::read_link(path).is_ok_and(|to| to.ends_with("rustup"))
        };
        let mut copy = Command::new("cp");
        copy.args(["-a", "-t"]).arg(home.join(".cargo/bin"));
        copy.args(listed.flatten().map(|entry| entry.path()).filter(is_rustups));
        process::answer(&mut copy)?;
        for name in ["config.toml", "credentials.toml"] {
            let settings = cargo.join(name);
            if settings.is_file() {
                fs::copy(&settings, home.join(".cargo").join(name))
                    .with_context(|| format!("cannot copy {}", settings.display()))?;
            }
        }
        Ok(())
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    fn written(&self) -> PathBuf {
        self.folder.join("rustup")
    }
}

/// Removes the machines of runs that were killed.
fn remove_abandoned(runs: &Path) -> Result<()> {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Kept machines have other names.
        let process: Option<u32> = name.to_str().and_then(|name| name.parse().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_machines_are_removed_and_kept_ones_stay() {
        let runs = tempfile::tempdir().unwrap();
        let own = std::process::id().to_string();
        // Above the maximum process id of Linux.
        for name in ["5000000", own.as_str(), "5000001.kept"] {
            fs::create_dir_all(runs.path().join(name).join("root")).unwrap();
        }
        remove_abandoned(runs.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(runs.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let mut expected = [own.as_str(), "5000001.kept"];
        expected.sort_unstable();
        assert_eq!(left, expected);
        remove_abandoned(&runs.path().join("missing")).unwrap();
    }
}
