//! Checks that packages are self-contained: a node of the package starts in a clean place, and the
//! example's script calls it.

use super::copy;
use crate::process;
use crate::setup::{report, step};
use crate::weir::DemoNode;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Expected part of the script's last response.
const ANSWER: &str = r#""digit":7"#;

/// A package of a release, as users install it.
pub(super) trait Package {
    /// What it is called in messages.
    fn name(&self) -> &'static str;

    /// The file that users download.
    fn path(&self) -> &Path;

    /// Installs the package in the empty `folder`, and starts a node of it.
    fn start(&self, folder: &Path) -> Result<DemoNode>;

    /// Calls the node at `url`, on which the example is deployed, with other programs of the package
    /// in `folder`.
    fn call(&self, _folder: &Path, _url: &str) -> Result<()> {
        Ok(())
    }
}

/// Starts a node of `package`, and calls it by the example in the folder of the release.
pub(super) fn run(package: &dyn Package, release: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make an empty folder")?;
    let node = package.start(folder.path())?;
    let script = release.join("examples/digits/try.sh");
    let answer = process::answer(Command::new(&script).env("WEIR_URL", node.url()).env_remove("WEIR_TOKEN"))?;
    package.call(folder.path(), &node.url())?;
    node.stop()?;
    if !answer.contains(ANSWER) {
        bail!("the script's answers should have {ANSWER} in them:\n{answer}");
    }
    report("checked", &format!("the example is answered by {}", package.name()));
    Ok(())
}

/// The tarball of a release.
pub(super) struct Tarball {
    path: PathBuf,
    /// The folder in the tarball.
    name: String,
}

/// Mounts the kernel's file systems in the root `$1` and executes the node there. The process stays
/// the same, so signals to it reach the node. The mounts end with the process.
const START: &str = r#"mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && exec chroot "$@""#;

impl Tarball {
    /// Packs the folder `name` in `dist`.
    pub(super) fn pack(dist: &Path, name: &str) -> Result<Self> {
        let path = dist.join(format!("{name}.tar.gz"));
        // When root unpacks the tarball, the files belong to root instead of a user with the
        // builder's id.
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "--numeric-owner", "-C"]);
        process::run(tar.arg(dist).arg("-czf").arg(&path).arg(name))?;
        Ok(Self { path, name: name.to_owned() })
    }
}

impl Package for Tarball {
    fn name(&self) -> &'static str {
        "the tarball"
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Unpacks the tarball in a root file system that contains only the C and C++ libraries of any
    /// Linux, `/dev` and `/proc`: no repository, home folder, environment or other program. The node
    /// runs there.
    fn start(&self, root: &Path) -> Result<DemoNode> {
        let Self { path, name } = self;
        step("unpacking the tarball in an empty root");
        for folder in ["dev", "proc", "data"] {
            std::fs::create_dir_all(root.join(folder)).context("cannot make the empty root")?;
        }
        process::run(Command::new("tar").arg("-C").arg(root).arg("-xzf").arg(path))?;
        for file in ["bin/weir", "lib/libonnxruntime.so"] {
            for library in system_libraries(&root.join(name).join(file))? {
                copy(&library, &root.join(library.strip_prefix("/")?))?;
            }
        }
        let mut command = Command::new("unshare");
        command.args(namespaces()?).args(["sh", "-c", START, "sh"]).arg(root);
        command.arg(format!("/{name}/bin/weir")).args(["up", "--listen", "127.0.0.1:0", "--data", "/data"]);
        // PATH is only for the programs of this command line.
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        DemoNode::spawn(command)
    }
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
