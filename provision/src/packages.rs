//! Packages that build functions in other languages, each set in a folder of its project: nothing of the machine's is touched.

mod npm;
mod python;

pub use npm::NodeModules;
pub use python::PythonEnvironment;

use crate::process::{self, Failure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why packages are not there.
#[derive(Debug, thiserror::Error)]
pub enum PackagesError {
    /// The program that installs them is not there.
    #[error("cannot start `{program}`: {source}")]
    NoProgram {
        /// Which.
        program: &'static str,
        /// What a person can do about it.
        hint: &'static str,
        /// Why it does not start.
        source: std::io::Error,
    },
    /// Installing them failed.
    #[error("{step}: {why}")]
    Step {
        /// What was being done.
        step: String,
        /// What it said.
        why: String,
        /// What a person can do about it.
        hint: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl PackagesError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoProgram { hint, .. } | Self::Step { hint, .. } => hint,
            Self::File { .. } => "see that the project's folder can be read and written",
        }
    }

    fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}

/// Run one step of an installation by `program`, which is told as `step`.
fn step(
    command: &mut Command,
    program: &'static str,
    step: &str,
    hint: &'static str,
) -> Result<(), PackagesError> {
    process::answer(command).map(drop).map_err(|failure| match failure {
        Failure::Start(source) => PackagesError::NoProgram { program, hint, source },
        Failure::Exit(why) => PackagesError::Step { step: step.to_owned(), why, hint },
    })
}
