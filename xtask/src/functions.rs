//! `cargo xtask functions`.

mod other;
mod rust;

use crate::parallel;
use crate::repo::Repo;
use crate::setup;
use anyhow::{Context as _, Result, bail};
use other::CompilerFolders;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_provision::Toolchain;

/// Build the functions in `functions/` into `target/functions/<name>.wasm`
///
/// Makes release builds of changed functions. A folder with a `Cargo.toml` is a function in Rust; a
/// folder with only a `weir.toml` is built by its `build` command.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct BuildFunctionsArgs {
    /// Functions to build [default: all]
    names: Vec<String>,
    /// Use Debian's Rust even if rustup has the target, to test that it works
    #[arg(long)]
    debian: bool,
}

impl BuildFunctionsArgs {
    /// Selects these functions.
    pub(crate) fn from_names(names: &[&str]) -> Self {
        Self { names: names.iter().map(|&name| name.to_owned()).collect(), debian: false }
    }
}

pub(crate) fn run(repo: &Repo, args: &BuildFunctionsArgs) -> Result<()> {
    let all = FunctionFolders::in_folder(&repo.functions())?;
    let wanted = all.only(&args.names)?;
    let mut built = BTreeMap::new();
    if !wanted.rust.is_empty() {
        let toolchain = if args.debian {
            Toolchain::find_debian(&repo.functions()).context("Debian's packages are not all there")?
        } else {
            setup::toolchain(repo)?
        };
        let everything = wanted.rust.len() == all.rust.len();
        built.extend(rust::build(repo, &toolchain, if everything { &[] } else { &wanted.rust })?);
    }
    if !wanted.other.is_empty() {
        let compilers = CompilerFolders::install(repo, &wanted.other)?;
        // Most of their compilers use one processor.
        let components = parallel::all(&wanted.other, parallel::processors(), |name| {
            Ok(other::build(repo, name, &compilers)?.map(|component| (name.clone(), component)))
        })?;
        built.extend(components.into_iter().flatten());
    }
    let folder = repo.built_functions();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let count = built.len();
    for (name, component) in built {
        let place = folder.join(&name).with_extension("wasm");
        let (bytes, changed) = install(&component, &place)?;
        let verb = if changed { "built" } else { "unchanged" };
        eprintln!("{verb:>9} {} ({} KB)", repo.show(&place), bytes.div_ceil(1000));
    }
    if args.names.is_empty() && !args.debian {
        eprintln!("{count} functions are in {}", repo.show(&folder));
    }
    Ok(())
}

/// Functions by name, which is the name of their folder.
struct FunctionFolders {
    rust: Vec<String>,
    other: Vec<String>,
}

impl FunctionFolders {
    fn in_folder(folder: &Path) -> Result<Self> {
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let mut rust = Vec::new();
        let mut other = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if path.join("Cargo.toml").is_file() {
                rust.push(name.to_owned());
            } else if path.join("weir.toml").is_file() {
                other.push(name.to_owned());
            }
        }
        rust.sort();
        other.sort();
        Ok(Self { rust, other })
    }

    /// Selects functions by name, or all functions if `names` is empty.
    fn only(&self, names: &[String]) -> Result<Self> {
        for name in names {
            if !self.rust.contains(name) && !self.other.contains(name) {
                bail!(
                    "there is no function {name}; there are {}",
                    [&self.rust[..], &self.other[..]].concat().join(", ")
                );
            }
        }
        let pick = |from: &[String]| -> Vec<String> {
            from.iter().filter(|name| names.is_empty() || names.contains(name)).cloned().collect()
        };
        Ok(Self { rust: pick(&self.rust), other: pick(&self.other) })
    }
}

/// Writes `component` to `place` atomically, unless the contents are equal. Returns the length and
/// whether the file changed.
fn install(component: &Path, place: &Path) -> Result<(usize, bool)> {
    let bytes = std::fs::read(component)
        .with_context(|| format!("the build did not create {}", component.display()))?;
    if std::fs::read(place).is_ok_and(|there| there == bytes) {
        return Ok((bytes.len(), false));
    }
    let scratch = PathBuf::from(format!("{}.{}.tmp", place.display(), std::process::id()));
    std::fs::write(&scratch, &bytes)
        .and_then(|()| std::fs::rename(&scratch, place))
        .with_context(|| format!("cannot write {}", place.display()))?;
    Ok((bytes.len(), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_their_manifest() {
        let folder = tempfile::tempdir().unwrap();
        for (name, file) in [("b", "Cargo.toml"), ("a", "Cargo.toml"), ("p", "weir.toml"), ("x", "README.md")]
        {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join(file), "").unwrap();
        }
        let all = FunctionFolders::in_folder(folder.path()).unwrap();
        assert_eq!((all.rust.join(" "), all.other.join(" ")), ("a b".into(), "p".into()));
        let some = all.only(&["b".into(), "p".into()]).unwrap();
        assert_eq!((some.rust.join(" "), some.other.join(" ")), ("b".into(), "p".into()));
        assert!(all.only(&["x".into()]).is_err());
    }

    #[test]
    fn equal_component_is_not_rewritten() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("a");
        let to = folder.path().join("b");
        std::fs::write(&from, "one").unwrap();
        assert_eq!(install(&from, &to).unwrap(), (3, true));
        assert_eq!(install(&from, &to).unwrap(), (3, false));
        std::fs::write(&from, "other").unwrap();
        assert_eq!(install(&from, &to).unwrap(), (5, true));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
