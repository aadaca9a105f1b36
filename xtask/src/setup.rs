//! `cargo xtask setup`.

use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result, anyhow};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::{OnnxRuntime, Toolchain};

/// Bring what this machine lacks: a Rust toolchain for functions, ONNX Runtime, and the compiler for functions in Python
///
/// Everything but the Rust target goes into `.weir/`. What is there already is left alone.
#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {}

pub(crate) fn run(repo: &Repo, _args: &SetupArgs) -> Result<()> {
    toolchain(repo)?;
    onnxruntime(repo)?;
    python(repo)?;
    Ok(())
}

/// The toolchain that builds functions in Rust, installed if need be.
pub(crate) fn toolchain(repo: &Repo) -> Result<Toolchain> {
    if let Ok(toolchain) = Toolchain::find(&repo.functions()) {
        report("found", &format!("Rust for {}: {toolchain}", weir_provision::TARGET));
        return Ok(toolchain);
    }
    let toolchain = Toolchain::find_or_install(&repo.functions(), &mut step)
        .map_err(|error| anyhow!("{error}\n\nWhat to do: {}", error.hint()))?;
    report("installed", &format!("Rust for {}: {toolchain}", weir_provision::TARGET));
    Ok(toolchain)
}

/// The library that runs models on the CPU.
pub(crate) fn onnxruntime(repo: &Repo) -> Result<PathBuf> {
    let (library, version) = (repo.onnxruntime(), OnnxRuntime::VERSION);
    let what = format!("ONNX Runtime {version} in {}", repo.show(&library));
    let stamp = Stamp::beside(&library, version);
    if stamp.is_current() {
        report("found", &what);
        return Ok(library);
    }
    let folder = repo.local().join("lib");
    let fetch = || OnnxRuntime::for_this_machine()?.fetch(&folder, &mut step);
    let library = fetch().map_err(|error| anyhow!("{error}\n\nWhat to do: {}", error.hint()))?;
    stamp.write()?;
    report("installed", &what);
    Ok(library)
}

/// The folder of programs of a Python environment that has what `functions/requirements.txt` pins.
pub(crate) fn python(repo: &Repo) -> Result<PathBuf> {
    environment(repo, "python", &repo.functions().join("requirements.txt"))
}

/// The folder of programs of the Python environment `.weir/<name>`, which has what the file `requirements` pins: all of it, by checksum.
pub(crate) fn environment(repo: &Repo, name: &str, requirements: &Path) -> Result<PathBuf> {
    let environment = repo.local().join(name);
    let wanted = std::fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let pins =
        wanted.lines().filter_map(|line| line.split_whitespace().next()).filter(|word| word.contains("=="));
    let what = format!("{} in {}", pins.collect::<Vec<_>>().join(", "), repo.show(&environment));
    let programs = environment.join("bin");
    let stamp = Stamp::beside(&environment, &wanted);
    if stamp.is_current() {
        report("found", &what);
        return Ok(programs);
    }
    let hint = "What to do: see that python3 has venv and pip (Debian and Ubuntu: `apt-get install python3-venv python3-pip`) and reaches PyPI";
    step(&format!("python3 -m venv {}", repo.show(&environment)));
    process::answer(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))
        .context(hint)?;
    step(&format!("pip install -r {} (checksums pinned)", repo.show(requirements)));
    let mut pip = Command::new(programs.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    // The file is complete. What a package asks for beyond it (a whole deep-learning framework, in one case) is not needed here.
    pip.args(["--require-hashes", "--no-deps", "--only-binary=:all:", "-r"]).arg(requirements);
    process::answer(&mut pip).context(hint)?;
    stamp.write()?;
    report("installed", &what);
    Ok(programs)
}

/// What is about to be done.
pub(crate) fn step(what: &str) {
    eprintln!("  ... {what}");
}

/// What has come of it.
pub(crate) fn report(verb: &str, what: &str) {
    eprintln!("{verb:>9} {what}");
}

/// A file that says for what something was installed, written once all of it is in place.
pub(crate) struct Stamp<'a> {
    subject: &'a Path,
    file: PathBuf,
    content: &'a str,
}

impl<'a> Stamp<'a> {
    /// The stamp of `subject`, which is what `content` stands for.
    pub(crate) fn beside(subject: &'a Path, content: &'a str) -> Self {
        let mut file = subject.as_os_str().to_owned();
        file.push(".stamp");
        Self { subject, file: file.into(), content }
    }

    /// Whether it is there and was made for the same content.
    pub(crate) fn is_current(&self) -> bool {
        self.subject.exists() && std::fs::read_to_string(&self.file).is_ok_and(|is| is == self.content)
    }

    /// Say that all of it is in place.
    pub(crate) fn write(&self) -> Result<()> {
        std::fs::write(&self.file, self.content)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_counts_only_beside_its_subject_and_with_the_same_content() {
        let folder = tempfile::tempdir().unwrap();
        let subject = folder.path().join("lib.so");
        let stamp = Stamp::beside(&subject, "1.0");
        stamp.write().unwrap();
        assert!(!stamp.is_current(), "the subject is not there");
        std::fs::write(&subject, "").unwrap();
        assert!(stamp.is_current());
        assert!(!Stamp::beside(&subject, "1.1").is_current());
    }
}
