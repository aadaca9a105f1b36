//! Checks that the tarball is self-contained.
//!
//! The tarball is unpacked into a root file system that contains only the C and C++ libraries of
//! any Linux, `/dev` and `/proc`: no repository, home folder, environment or other program. The
//! node runs there, and the example's script calls it from outside.

use super::copy;
use crate::process;
use crate::setup::{report, step};
use crate::weir::DemoNode;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounts the kernel's file systems in the root `$1` and executes the node there. The process stays
/// the same, so signals to it reach the node. The mounts end with the process.
const START: &str = r#"mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && exec chroot "$@""#;

/// Expected part of the script's last response.
const ANSWER: &str = r#""digit":7"#;

pub(super) fn run(tarball: &Path, name: &str) -> Result<()> {
    let root = std::env::temp_dir().join(format!("weir-dist-{}", std::process::id()));
    let checked = check(tarball, name, &root);
    std::fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    checked
}

fn check(tarball: &Path, name: &str, root: &Path) -> Result<()> {
    step("unpacking it in an empty root");
    for folder in ["dev", "proc", "data"] {
        std::fs::create_dir_all(root.join(folder)).context("cannot make the empty root")?;
    }
    process::run(Command::new("tar").arg("-C").arg(root).arg("-xzf").arg(tarball))?;
    let folder = root.join(name);
    for file in [folder.join("bin/weir"), folder.join("lib/libonnxruntime.so")] {
        for library in system_libraries(&file)? {
            copy(&library, &root.join(library.strip_prefix("/")?))?;
        }
    }
    let mut command = Command::new("unshare");
    command.args(namespaces()?).args(["sh", "-c", START, "sh"]).arg(root);
    command.arg(format!("/{name}/bin/weir")).args(["up", "--listen", "127.0.0.1:0", "--data", "/data"]);
    // PATH is only for the programs of this command line.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let node = DemoNode::spawn(command)?;
    let script = folder.join("examples/digits/try.sh");
    let answer = process::answer(Command::new(&script).env("WEIR_URL", node.url()).env_remove("WEIR_TOKEN"))?;
    node.stop()?;
    if !answer.contains(ANSWER) {
        bail!("the script's answers should have {ANSWER} in them:\n{answer}");
    }
    report("checked", "the example answers with nothing but the tarball there");
    Ok(())
}

/// Options of `unshare` for a mount namespace: as root, or as a user who becomes root only in it.
fn namespaces() -> Result<&'static [&'static str]> {
    let options: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];
    let works = |options: &&&[&str]| process::succeeds(Command::new("unshare").args(**options).arg("true"));
    options.iter().find(works).copied().context(
        "this user cannot make a mount namespace; What to do: run this as root, or allow namespaces to users (`sysctl kernel.apparmor_restrict_unprivileged_userns=0`)",
    )
}

/// System libraries that `file` is linked to, including the loader.
fn system_libraries(file: &Path) -> Result<Vec<PathBuf>> {
    let listed = process::answer(Command::new("ldd").arg(file))?;
    let missing: Vec<_> = listed.lines().filter(|line| line.contains("not found")).collect();
    if !missing.is_empty() {
        bail!("{} needs what is not on this machine:\n{}", file.display(), missing.join("\n"));
    }
    Ok(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
