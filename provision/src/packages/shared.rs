//! Python environments that the projects of a user share.

use super::PackagesError;
use super::python::{PythonEnvironment, python, read, remove};
use sha2::{Digest as _, Sha256};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Time without a use after which an environment is removed.
const UNUSED_MAX: Duration = Duration::from_hours(90 * 24);

/// Folder of Python environments, one for each content of a requirement file.
///
/// A compiler has up to 400 MB, and most projects of a language pin the same one. Each environment
/// has a lock file beside it, which admits one installation at a time. The lock file's time of
/// modification is the time of the last use.
#[derive(Debug, Clone)]
pub struct SharedEnvironments {
    folder: PathBuf,
}

impl SharedEnvironments {
    /// Environments in `folder`, which is created on the first installation.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Returns an environment with exactly the packages of the requirement file `pinned`, for the
    /// Python of this machine. Installs it if it does not exist, and then removes environments that
    /// no project used for 90 days. Calls `on_step` before each step.
    pub fn install(
        &self,
        pinned: &Path,
        on_step: &mut dyn FnMut(&str),
    ) -> Result<PythonEnvironment, PackagesError> {
        let folder = self.folder.join(key(&read(pinned)?)?);
        let environment = PythonEnvironment::pinned(&folder, pinned);
        let lock = self.lock(&folder, on_step).map_err(PackagesError::file(&folder))?;
        let installed = environment.install(on_step)?;
        lock.set_modified(SystemTime::now()).map_err(PackagesError::file(&folder))?;
        if installed && let Err(error) = self.remove_unused(SystemTime::now() - UNUSED_MAX) {
            on_step(&format!("unused toolchains in {} stay: {error}", self.folder.display()));
        }
        Ok(environment)
    }

    /// Waits for the end of another process's installation in `folder`. The lock ends when the
    /// file is closed.
    fn lock(&self, folder: &Path, on_step: &mut dyn FnMut(&str)) -> io::Result<File> {
        std::fs::create_dir_all(&self.folder)?;
        let file = File::options().create(true).append(true).open(lock_file(folder))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        on_step("waiting for another build, which installs the same toolchain");
        file.lock()?;
        Ok(file)
    }

    /// Removes the environments whose last use was before `since` and that no process installs now.
    /// Keeps the lock files, because another process may have opened one.
    fn remove_unused(&self, since: SystemTime) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "lock") {
                continue;
            }
            let file = File::open(&path)?;
            if file.metadata()?.modified()? >= since || file.try_lock().is_err() {
                continue;
            }
            remove(&path.with_extension(""))?;
        }
        Ok(())
    }
}

/// Name of the environment with the packages of `requirements`. An environment depends on the
/// Python that created it.
fn key(requirements: &str) -> Result<String, PackagesError> {
    let digest =
        Sha256::new().chain_update(python()?).chain_update("\n").chain_update(requirements).finalize();
    Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn lock_file(folder: &Path) -> PathBuf {
    folder.with_extension("lock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stamp;

    /// Requirement files of two contents, and environments that are marked as installed.
    fn shared(folder: &Path) -> Option<(SharedEnvironments, [PathBuf; 2])> {
        let files = ["a==1\n", "b==1\n"].map(|content| {
            let file = folder.join(&content[..1]);
            std::fs::write(&file, content).unwrap();
            file
        });
        let environments = SharedEnvironments::new(folder.join("toolchains"));
        for content in ["a==1\n", "b==1\n"] {
            let Ok(key) = key(content) else {
                eprintln!("skipped: there is no python3");
                return None;
            };
            let folder = environments.folder.join(key);
            std::fs::create_dir_all(&folder).unwrap();
            Stamp::beside(&folder, content).write().unwrap();
        }
        Some((environments, files))
    }

    #[test]
    fn equal_requirement_files_share_an_environment() {
        let folder = tempfile::tempdir().unwrap();
        let Some((environments, [a, b])) = shared(folder.path()) else { return };
        let copy = folder.path().join("copy");
        std::fs::copy(&a, &copy).unwrap();
        let folder_for = |file: &Path| {
            environments.install(file, &mut |step| panic!("installed: {step}")).unwrap().folder().to_owned()
        };
        assert_eq!(folder_for(&a), folder_for(&copy));
        assert_ne!(folder_for(&a), folder_for(&b));
    }

    #[test]
    fn unused_environments_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let Some((environments, files)) = shared(folder.path()) else { return };
        let [old, recent] = files.map(|file| environments.install(&file, &mut |_| ()).unwrap());
        let hour = Duration::from_hours(1);
        let set_use = |environment: &PythonEnvironment, at| {
            let lock = File::options().append(true).open(lock_file(environment.folder())).unwrap();
            lock.set_modified(at).unwrap();
            lock
        };
        drop(set_use(&old, SystemTime::now() - 2 * hour));
        drop(set_use(&recent, SystemTime::now()));
        environments.remove_unused(SystemTime::now() - hour).unwrap();
        assert!(!old.folder().exists() && recent.folder().exists());
        // Another process installs it again.
        let lock = set_use(&recent, SystemTime::now() - 2 * hour);
        lock.lock().unwrap();
        environments.remove_unused(SystemTime::now() - hour).unwrap();
        assert!(recent.folder().exists());
    }

    #[test]
    fn second_installation_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let Some((environments, [a, _])) = shared(folder.path()) else { return };
        let environment = environments.install(&a, &mut |_| ()).unwrap();
        let lock = File::options().append(true).open(lock_file(environment.folder())).unwrap();
        lock.lock().unwrap();
        let mut first = Some(lock);
        let mut steps = Vec::new();
        let mut on_step = |step: &str| {
            steps.push(step.to_owned());
            drop(first.take());
        };
        environments.install(&a, &mut on_step).unwrap();
        assert!(steps[0].starts_with("waiting for another build"), "{steps:?}");
    }
}
