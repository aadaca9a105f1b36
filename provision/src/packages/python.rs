//! Python environments, which hold the compilers published on PyPI, for any language.

use super::{PackagesError, step};
use crate::Stamp;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const HINT: &str = "see that python3 (3.10 or newer) has venv and pip (Debian and Ubuntu: `apt-get install python3-venv python3-pip`) and reaches PyPI";
/// File with the path of another environment's packages, which Python adds to its own.
const INCLUDED: &str = "weir-toolchain.pth";
/// File endings of machine code.
const MACHINE_CODE: [&str; 3] = [".so", ".pyd", ".dylib"];
/// Part of the names of Python's extension modules for WASI.
const WASI: &str = "wasm32-wasi";
/// Largest number of requirements in a description; a description of more ends with the number of
/// the rest.
const PINS_SHOWN_MAX: usize = 12;

/// A Python environment in a folder, and the requirement file of its packages.
#[derive(Debug, Clone)]
pub struct PythonEnvironment {
    folder: PathBuf,
    requirements: PathBuf,
    options: &'static [&'static str],
    /// Python that the environment depends on; empty if its folder's name contains it.
    python: String,
}

impl PythonEnvironment {
    /// An environment in `folder` with exactly the packages of the requirement file `pinned`, which
    /// gives each a version and checksum.
    #[must_use]
    pub fn pinned(folder: impl Into<PathBuf>, pinned: impl Into<PathBuf>) -> Self {
        // `--no-deps`, because the file is complete. Further declared dependencies (in one case, a
        // whole deep-learning framework) are not needed.
        let options = &["--require-hashes", "--no-deps", "--only-binary=:all:"];
        Self { folder: folder.into(), requirements: pinned.into(), options, python: String::new() }
    }

    /// An environment in `folder` with the packages of the requirement file `requirements`, pinned
    /// or not, and their dependencies. `None` if the file does not exist or has no requirement; an
    /// earlier environment is then removed.
    pub fn resolved(
        folder: impl Into<PathBuf>,
        requirements: impl Into<PathBuf>,
    ) -> Result<Option<Self>, PackagesError> {
        let folder = folder.into();
        let requirements = requirements.into();
        if !requirements.is_file() || !has_requirements(&read(&requirements)?) {
            remove(&folder).map_err(PackagesError::file(&folder))?;
            return Ok(None);
        }
        Ok(Some(Self { folder, requirements, options: &[], python: python()? }))
    }

    /// Makes the packages of `other` importable in this environment.
    pub fn include(&self, other: &Self) -> Result<(), PackagesError> {
        let write = || {
            let file = self.site_packages()?.join(INCLUDED);
            let path = other.site_packages()?.display().to_string();
            if std::fs::read_to_string(&file).is_ok_and(|is| is == path) {
                return Ok(());
            }
            std::fs::write(&file, path)
        };
        write().map_err(PackagesError::file(&self.folder))
    }

    /// Folder of the installed packages: `lib/python3.11/site-packages`.
    fn site_packages(&self) -> io::Result<PathBuf> {
        for entry in std::fs::read_dir(self.folder.join("lib"))? {
            let packages = entry?.path().join("site-packages");
            if packages.is_dir() {
                return Ok(packages);
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "it has no folder site-packages"))
    }

    /// Names of the installed packages that contain machine code, which components cannot run.
    /// Builds for WASI are not among them.
    pub fn native_packages(&self) -> Result<Vec<String>, PackagesError> {
        let list = || {
            let mut native = Vec::new();
            for entry in std::fs::read_dir(self.site_packages()?)? {
                let entry = entry?;
                let title = entry.file_name();
                let Some(title) = title.to_str().and_then(|title| title.strip_suffix(".dist-info")) else {
                    continue;
                };
                // Packages that the system's own tools installed may have no list of files.
                let Ok(files) = std::fs::read_to_string(entry.path().join("RECORD")) else { continue };
                if has_machine_code(&files) {
                    native.push(title.split_once('-').map_or(title, |(name, _)| name).to_owned());
                }
            }
            native.sort_unstable();
            Ok(native)
        };
        list().map_err(PackagesError::file(&self.folder))
    }

    /// Folder of the environment.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of the environment's programs.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The pinned packages, for people.
    pub fn describe(&self) -> Result<String, PackagesError> {
        Ok(pins(&read(&self.requirements)?))
    }

    /// Creates the environment, unless it exists and is current. Calls `on_step` before each step.
    /// Returns whether anything was installed.
    pub fn install(&self, on_step: &mut dyn FnMut(&str)) -> Result<bool, PackagesError> {
        let requirements = read(&self.requirements)?;
        let wanted = format!("{}{requirements}", self.python);
        let stamp = Stamp::beside(&self.folder, &wanted);
        if stamp.is_current() {
            return Ok(false);
        }
        stamp.clear().map_err(PackagesError::file(&self.folder))?;
        let line = format!("python3 -m venv {}", self.folder.display());
        on_step(&line);
        step(
            Command::new("python3").args(["-m", "venv", "--clear"]).arg(&self.folder),
            "python3",
            &line,
            HINT,
        )?;
        let line = format!("pip install -r {}", self.requirements.display());
        on_step(&match pins(&requirements) {
            pins if !self.options.is_empty() => format!("pip install {pins} (checksums pinned)"),
            _ => line.clone(),
        });
        let mut pip = Command::new(self.programs().join("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        pip.args(self.options).arg("-r").arg(&self.requirements);
        step(&mut pip, "pip", &line, HINT)?;
        stamp.write().map_err(PackagesError::file(&self.folder))?;
        Ok(true)
    }
}

/// Identity of the machine's Python, which environments depend on.
pub(super) fn python() -> Result<String, PackagesError> {
    let script = "import sys, sysconfig; print(sys.base_prefix, sys.version, sysconfig.get_platform())";
    step(Command::new("python3").args(["-c", script]), "python3", "python3 --version", HINT)
}

/// Removes an environment, if it exists.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    Stamp::beside(folder, "").clear()?;
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn read(path: &Path) -> Result<String, PackagesError> {
    std::fs::read_to_string(path).map_err(PackagesError::file(path))
}

/// `name==version` of each requirement, up to [`PINS_SHOWN_MAX`].
fn pins(requirements: &str) -> String {
    let words = requirements.lines().filter_map(|line| line.split_whitespace().next());
    let pins: Vec<_> = words.filter(|word| word.contains("==")).collect();
    match pins.split_at_checked(PINS_SHOWN_MAX) {
        Some((shown, more)) if !more.is_empty() => format!("{} and {} more", shown.join(", "), more.len()),
        _ => pins.join(", "),
    }
}

/// Whether a package with these files, as listed in its `RECORD`, contains machine code.
fn has_machine_code(record: &str) -> bool {
    record.lines().filter_map(|line| line.split(',').next()).any(|file| {
        let file = file.trim_matches('"');
        // Shared libraries may have a version behind the ending: `libx.so.1`.
        let is_library = MACHINE_CODE.iter().any(|ending| file.ends_with(ending)) || file.contains(".so.");
        is_library && !file.contains(WASI)
    })
}

fn has_requirements(text: &str) -> bool {
    text.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_omit_checksums_and_comments() {
        let many = (0..PINS_SHOWN_MAX + 2).map(|n| format!("p{n}==1\n")).collect::<String>();
        assert!(pins(&many).ends_with("==1 and 2 more"), "{}", pins(&many));
        assert_eq!(pins("# a\nx==1.0 \\\n    --hash=sha256:ab\ny==2\n"), "x==1.0, y==2");
        assert!(!has_requirements("# nothing\n\n") && has_requirements("# one\nx\n"));
    }

    #[test]
    fn python_environment_is_created_once_and_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let pinned = folder.path().join("toolchain.txt");
        std::fs::write(&pinned, "# nothing\n").unwrap();
        let environment = PythonEnvironment::pinned(folder.path().join("python"), &pinned);
        let mut steps = Vec::new();
        // pip rejects an empty requirements file in hash mode. The failure must not leave a stamp.
        let made = environment.install(&mut |step| steps.push(step.to_owned()));
        if let Err(error @ PackagesError::NoProgram { .. }) = &made {
            eprintln!("skipped: {error}");
            return;
        }
        assert!(steps[0].starts_with("python3 -m venv"), "{steps:?}");
        let again = environment.install(&mut |_| ());
        assert_eq!(made.is_ok(), again.as_ref().is_ok_and(|done| !done), "{made:?} and then {again:?}");
        std::fs::write(&pinned, "no-hash==1\n").unwrap();
        let refused = environment.install(&mut |_| ()).unwrap_err();
        assert!(refused.to_string().contains("hash"), "{refused}");
        assert!(environment.install(&mut |_| ()).is_err(), "a failed installation counts as done");
    }

    #[test]
    fn packages_with_machine_code_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("lib/python3.12/site-packages");
        let add = |title: &str, record: &str| {
            let info = packages.join(format!("{title}.dist-info"));
            std::fs::create_dir_all(&info).unwrap();
            std::fs::write(info.join("RECORD"), record).unwrap();
        };
        add("numpy-2.3.1", "numpy/_core.cpython-312-x86_64-linux-gnu.so,sha256=a,1\n");
        add("lib_x-1.0", "x/__init__.py,,\nlib_x.libs/libx-1.so.3,sha256=a,1\n");
        add("pure-1.0", "pure/__init__.py,sha256=a,1\npure/so.py,,\n");
        add("wasi-1.0", "wasi/core.cpython-312-wasm32-wasi.so,sha256=a,1\n");
        std::fs::create_dir(packages.join("unlisted-1.0.dist-info")).unwrap();
        let environment = PythonEnvironment::pinned(folder.path(), "none");
        assert_eq!(environment.native_packages().unwrap(), ["lib_x", "numpy"]);
    }

    #[test]
    fn file_without_requirements_needs_no_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requirements.txt");
        let earlier = folder.path().join("python");
        let resolved = || PythonEnvironment::resolved(&earlier, &file).unwrap();
        std::fs::create_dir(&earlier).unwrap();
        assert!(resolved().is_none(), "without a file");
        assert!(!earlier.exists(), "an environment of earlier requirements stays");
        std::fs::write(&file, "# nothing\n").unwrap();
        assert!(resolved().is_none(), "with comments only");
    }

    #[test]
    fn included_packages_can_be_imported() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, other] = ["ours", "other"].map(|name| {
            let environment = PythonEnvironment::pinned(folder.path().join(name), "none");
            let mut venv = Command::new("python3");
            venv.args(["-m", "venv", "--without-pip"]).arg(environment.folder());
            venv.status().is_ok_and(|status| status.success()).then_some(environment)
        });
        let (Some(ours), Some(other)) = (ours, other) else {
            eprintln!("skipped: there is no python3 with venv");
            return;
        };
        std::fs::write(other.site_packages().unwrap().join("toolchain_module.py"), "").unwrap();
        let import = || {
            let mut python = Command::new(ours.programs().join("python"));
            python.args(["-c", "import toolchain_module"]).stderr(std::process::Stdio::null());
            python.status().unwrap().success()
        };
        assert!(!import());
        ours.include(&other).unwrap();
        ours.include(&other).unwrap();
        assert!(import());
    }
}
