//! npm packages of a project.

use super::{PackagesError, step};
use crate::Stamp;
use std::path::{Path, PathBuf};
use std::process::Command;

const HINT: &str = "see that Node.js (20 or newer, with npm) is installed, from https://nodejs.org or the system's packages, and that npm reaches its registry";

/// The `node_modules` folder of a project with a `package.json`.
#[derive(Debug, Clone)]
pub struct NodeModules {
    project: PathBuf,
    /// Programs `node` and `npm-cli.js`; `None` for the `npm` of this machine.
    npm: Option<(PathBuf, PathBuf)>,
}

impl NodeModules {
    /// The packages of the project in `folder`.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { project: folder.to_owned(), npm: None }
    }

    /// Installs with the script `npm_cli` of npm, run by the program `node`, instead of this
    /// machine's npm. Node.js then trusts the certificate authorities of the system, as pip and
    /// curl do.
    #[must_use]
    pub fn with_npm(self, node: &Path, npm_cli: &Path) -> Self {
        Self { npm: Some((node.to_owned(), npm_cli.to_owned())), ..self }
    }

    /// Folder of the packages' programs.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.folder().join(".bin")
    }

    /// Installs the packages that `package-lock.json` pins by checksum, unless they are installed
    /// and current. If the lock file is missing or does not match `package.json`, npm resolves the
    /// packages and writes the lock file. Never runs install scripts of packages. Returns whether
    /// anything was installed.
    pub fn install(&self, on_step: &mut dyn FnMut(&str)) -> Result<bool, PackagesError> {
        // npm writes this file at the end of an installation. A stamp in the project folder would
        // trigger file watchers of the project.
        let installed = self.folder().join(".package-lock.json");
        let wanted = self.wanted()?;
        if Stamp::beside(&installed, &wanted).is_current() {
            return Ok(false);
        }
        Stamp::beside(&installed, "").clear().map_err(PackagesError::file(&installed))?;
        // If the lock file matches, npm installs its versions and verifies the checksums.
        const LINE: &str = "npm install --ignore-scripts";
        on_step(&format!("{LINE} (checksums pinned in package-lock.json)"));
        let mut npm = match &self.npm {
            None => Command::new("npm"),
            Some((node, cli)) => {
                let mut command = Command::new(node);
                // By default, Node.js trusts only the certificate authorities that it contains.
                command.arg(cli).env("NODE_USE_SYSTEM_CA", "1");
                command
            }
        };
        npm.current_dir(&self.project).args(["install", "--ignore-scripts"]);
        npm.args(["--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]);
        // With npm's default retries, an installation without a network takes minutes and prints
        // nothing.
        npm.args(["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]);
        step(&mut npm, "npm", LINE, HINT)?;
        // The installation may have written the lock file.
        let wanted = self.wanted()?;
        std::fs::create_dir_all(self.folder())
            .and_then(|()| Stamp::beside(&installed, &wanted).write())
            .map_err(PackagesError::file(&installed))?;
        Ok(true)
    }

    fn folder(&self) -> PathBuf {
        self.project.join("node_modules")
    }

    fn wanted(&self) -> Result<String, PackagesError> {
        let package = self.project.join("package.json");
        let package = std::fs::read_to_string(&package).map_err(PackagesError::file(&package))?;
        let lock = std::fs::read_to_string(self.project.join("package-lock.json")).unwrap_or_default();
        Ok(package + &lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npm_install_runs_once_and_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let modules = NodeModules::new(folder.path());
        assert!(matches!(modules.install(&mut |_| ()), Err(PackagesError::File { .. })));
        std::fs::write(folder.path().join("package.json"), "{\"private\": true}").unwrap();
        match modules.install(&mut |_| ()) {
            Err(error @ PackagesError::NoProgram { .. }) => return eprintln!("skipped: {error}"),
            made => assert!(made.unwrap()),
        }
        // npm writes no file if it has nothing to install.
        std::fs::write(modules.folder().join(".package-lock.json"), "{}").unwrap();
        assert!(!modules.install(&mut |_| ()).unwrap());
        std::fs::write(folder.path().join("package.json"), "{").unwrap();
        assert!(matches!(modules.install(&mut |_| ()), Err(PackagesError::Step { .. })));
    }
}
