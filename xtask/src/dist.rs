//! `cargo xtask dist`.

mod check;
mod packages;
mod readme;
mod third_party;

use crate::functions::{self, BuildFunctionsArgs};
use crate::repo::Repo;
use crate::setup::{self, report};
use crate::ui;
use crate::weir;
use anyhow::{Context as _, Result, bail};
use check::{Package, Tarball};
use packages::{DebianPackage, NpmPackage, Release, Wheel};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Make a release in `target/dist/`: a tarball, and packages for pip, npm and Debian
///
/// The tarball contains `weir` with its dashboard, ONNX Runtime, an example with its model, the
/// licences of all packages and a bill of materials. It runs on Linux of the same architecture with
/// only the C and C++ libraries: the program contains the templates of `weir new`, and finds ONNX
/// Runtime in its own folder. The package for pip contains the program and the Python client, and
/// depends on the `onnxruntime` package. The package for npm (made where `npm` is installed)
/// contains the program and ONNX Runtime. The package for Debian (made where `dpkg-deb` is
/// installed) contains both, and a systemd service. The Containerfile at the top of the repository
/// makes an image from the tarball's folder.
#[derive(Debug, clap::Args)]
pub(crate) struct DistArgs {
    /// Install each package in a clean place, and run the example on a node there
    #[arg(long)]
    check: bool,
    /// Build profile; `dev` is faster, but not for shipping
    #[arg(long, value_name = "PROFILE", default_value = "dist")]
    profile: String,
}

pub(crate) fn run(repo: &Repo, args: &DistArgs) -> Result<()> {
    let library = setup::onnxruntime(repo)?;
    functions::run(repo, &BuildFunctionsArgs::from_names(&["classify-digits"]))?;
    ui::build(repo)?;
    let weir = weir::build_with(repo, &args.profile)?;
    let name = format!("weir-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let dist = repo.root().join("target/dist");
    pack(&dist.join(&name), &contents(repo, weir, library))?;
    readme::write(repo, &dist.join(&name))?;
    third_party::write(repo, &dist.join(&name))?;
    // The release program is stripped and optimised; its size is limited because it is copied to
    // machines.
    if args.profile == "dist" {
        keep_within(&dist.join(&name).join("bin/weir"), PROGRAM_BYTES_MAX)?;
    }
    let folder = dist.join(&name);
    let release = Release { repo, folder: &folder, dist: &dist };
    let mut packages: Vec<Box<dyn Package>> =
        vec![Box::new(Tarball::pack(&dist, &name)?), Box::new(Wheel::pack(&release)?)];
    if let Some(package) = NpmPackage::pack(&release)? {
        packages.push(Box::new(package));
    }
    if let Some(package) = DebianPackage::pack(&release)? {
        packages.push(Box::new(package));
    }
    for package in &packages {
        report("made", &repo.show(package.path()).to_string());
    }
    if args.check { packages.iter().try_for_each(|package| check::run(&**package, &folder)) } else { Ok(()) }
}

/// Maximum size of the program: 64 MB.
const PROGRAM_BYTES_MAX: u64 = 64_000_000;

fn keep_within(file: &Path, bytes_max: u64) -> Result<()> {
    let bytes = file.metadata().with_context(|| format!("cannot read {}", file.display()))?.len();
    if bytes > bytes_max {
        bail!("{} has {bytes} bytes, and may have {bytes_max}", file.display());
    }
    report("weir", &format!("{bytes} bytes of at most {bytes_max}"));
    Ok(())
}

/// Contents of the release: source paths and paths in the release.
fn contents(repo: &Repo, weir: PathBuf, onnxruntime: PathBuf) -> Vec<(PathBuf, &'static str)> {
    let digits = repo.functions().join("classify-digits");
    vec![
        (weir, "bin/weir"),
        (onnxruntime, "lib/libonnxruntime.so"),
        (repo.built_functions().join("classify-digits.wasm"), "examples/digits/classify-digits.wasm"),
        (digits.join("model/digits.onnx"), "examples/digits/digits.onnx"),
        (digits.join("samples/7.png"), "examples/digits/7.png"),
        (digits.join("example/try.sh"), "examples/digits/try.sh"),
        (digits.join("example/README.md"), "examples/digits/README.md"),
        (repo.root().join("LICENSE"), "LICENSE"),
    ]
}

/// Makes `folder` contain exactly `contents`.
fn pack(folder: &Path, contents: &[(PathBuf, &str)]) -> Result<()> {
    clear(folder)?;
    contents.iter().try_for_each(|(from, to)| copy(from, &folder.join(to)))
}

/// Removes `folder`, if it exists.
fn clear(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Copies a file with its permissions, and creates the parent folders.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_removes_files_of_an_earlier_release() {
        let top = tempfile::tempdir().unwrap();
        let from = top.path().join("from");
        let folder = top.path().join("release");
        std::fs::write(&from, "new").unwrap();
        pack(&folder, &[(from.clone(), "bin/old")]).unwrap();
        pack(&folder, &[(from.clone(), "bin/new"), (from, "a/b/c")]).unwrap();
        assert!(!folder.join("bin/old").exists());
        assert_eq!(std::fs::read_to_string(folder.join("a/b/c")).unwrap(), "new");
        assert!(pack(&folder, &[(top.path().join("missing"), "x")]).is_err());
    }

    #[test]
    fn oversized_program_is_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0; 10]).unwrap();
        assert!(keep_within(file.path(), 10).is_ok());
        let error = keep_within(file.path(), 9).unwrap_err().to_string();
        assert!(error.contains("10 bytes, and may have 9"), "{error}");
    }

    #[test]
    fn example_files_exist_and_the_script_is_executable() {
        use std::os::unix::fs::PermissionsExt as _;
        let repo = Repo::find();
        let built = [repo.built_functions(), PathBuf::from("weir"), PathBuf::from("lib")];
        let here = contents(&repo, built[1].clone(), built[2].clone());
        for (from, to) in here.iter().filter(|(from, _)| !built.iter().any(|built| from.starts_with(built))) {
            let meta = from.metadata().unwrap_or_else(|error| panic!("{to}: {error}"));
            assert_eq!(to.ends_with(".sh"), meta.permissions().mode() & 0o111 != 0, "{to}");
        }
    }
}
