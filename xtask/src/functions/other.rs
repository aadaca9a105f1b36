//! Functions in other languages, built by the command in their `weir.toml`.

use crate::process;
use crate::repo::Repo;
use crate::setup;
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use weir_provision::component_of;

/// The keys of `weir.toml` that a build needs. The `weir` command reads the whole file.
#[derive(Deserialize)]
struct Project {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    build: String,
    component: PathBuf,
    world: Option<String>,
}

/// Folders of build products among the sources.
const PRODUCTS: [&str; 3] = ["__pycache__", "node_modules", "build"];

/// Folders of the programs that compile functions.
pub(super) struct CompilerFolders {
    python: PathBuf,
    /// `None` without npm, or if no function needs it.
    npm: Option<PathBuf>,
}

impl CompilerFolders {
    /// Installs the compilers that the functions `names` need.
    pub(super) fn install(repo: &Repo, names: &[String]) -> Result<Self> {
        let functions = repo.functions();
        let needs_npm = names.iter().any(|name| needs_npm(&functions.join(name)));
        let npm = if needs_npm { setup::node_modules(&functions)? } else { None };
        Ok(Self { python: setup::python(repo)?, npm })
    }
}

fn needs_npm(function: &Path) -> bool {
    function.join("package.json").is_file()
}

/// Builds the function `name` unless its component is newer than all sources. The folder of Python's
/// programs and, with a `package.json`, that of npm's are first in the PATH. Returns `None` if this
/// machine lacks tools of the language.
pub(super) fn build(repo: &Repo, name: &str, compilers: &CompilerFolders) -> Result<Option<PathBuf>> {
    let folder = repo.functions().join(name);
    let file = folder.join("weir.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let Project { function } = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
    let component = folder.join(&function.component);
    let requirements = repo.functions().join("requirements.txt");
    let packages = repo.functions().join("package-lock.json");
    let wit = repo.root().join("wit");
    let sdks = ["python/src", "js", "c", "go"].map(|sdk| repo.root().join("guest-sdk").join(sdk));
    let mut sources = vec![folder.as_path(), &wit, &requirements, &packages];
    sources.extend(sdks.iter().map(PathBuf::as_path));
    if is_newer(&component, &sources)? {
        return Ok(Some(component));
    }
    if let Some(above) = component.parent() {
        std::fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
    }
    let mut programs = vec![compilers.python.as_path()];
    if needs_npm(&folder) {
        let Some(npm) = &compilers.npm else { return Ok(None) };
        programs.push(npm);
        // Its compilers do not create the output folder.
        std::fs::create_dir_all(folder.join("build"))?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(programs.into_iter().map(PathBuf::from).chain(std::env::split_paths(&path)))?;
    eprintln!("  ... {name}: {}", function.build);
    let mut command = Command::new("sh");
    // The JavaScript SDK is a link to a folder without packages in its parents.
    command.env("PATH", path).env("NODE_PATH", repo.functions().join("node_modules"));
    process::run(command.args(["-c", &function.build]).current_dir(&folder))?;
    if let Some(world) = function.world {
        let left = std::fs::read(&component)
            .with_context(|| format!("the build did not create {}", component.display()))?;
        if let Some(made) = component_of(&left, &folder.join("wit"), &world)? {
            std::fs::write(&component, made)?;
        }
    }
    Ok(Some(component))
}

/// Whether `product` exists and is newer than all files in `sources`, including subfolders.
fn is_newer(product: &Path, sources: &[&Path]) -> Result<bool> {
    let Ok(made) = product.metadata().and_then(|meta| meta.modified()) else { return Ok(false) };
    for source in sources {
        if newest(source).with_context(|| format!("cannot look at {}", source.display()))? >= made {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Modification time of a file, or the newest one in a folder.
fn newest(path: &Path) -> std::io::Result<SystemTime> {
    if !path.is_dir() {
        return path.metadata()?.modified();
    }
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in path.read_dir()? {
        let path = entry?.path();
        // Skip products of tests and builds.
        if !PRODUCTS.iter().any(|product| path.ends_with(product)) {
            newest = newest.max(self::newest(&path)?);
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::time::Duration;

    #[test]
    fn product_is_newer_until_a_nested_source_changes() {
        let folder = tempfile::tempdir().unwrap();
        let product = folder.path().join("product");
        let sources = folder.path().join("src");
        fs::create_dir_all(sources.join("deep")).unwrap();
        let source = sources.join("deep/file");
        fs::write(&source, "").unwrap();
        assert!(!is_newer(&product, &[&sources]).unwrap(), "there is no product");
        fs::write(&product, "").unwrap();
        let now = SystemTime::now();
        let set =
            |path: &Path, time| File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        set(&source, now);
        set(&product, now + Duration::from_secs(1));
        assert!(is_newer(&product, &[&sources]).unwrap());
        set(&source, now + Duration::from_secs(2));
        assert!(!is_newer(&product, &[&sources]).unwrap());
        assert!(is_newer(&product, &[&folder.path().join("missing")]).is_err());
    }
}
