//! Build packages of other languages, installed in a folder of the project without changes to the
//! machine.

mod npm;
mod python;

pub use npm::NodeModules;
pub use python::PythonEnvironment;

use crate::process::{self, ProcessFailure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Error of a package installation.
#[derive(Debug, thiserror::Error)]
pub enum PackagesError {
    /// The package manager could not be started.
    #[error("cannot start `{program}`: {source}")]
    NoProgram {
        /// Name of the program.
        program: &'static str,
        /// Suggested remedy, for people.
        hint: &'static str,
        /// Cause.
        source: std::io::Error,
    },
    /// The installation failed.
    #[error("{step}: {why}")]
    Step {
        /// The failed step.
        step: String,
        /// Output of the step.
        why: String,
        /// Suggested remedy, for people.
        hint: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

impl PackagesError {
    /// Suggested remedy, for people.
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

/// Runs one installation step with `program`. Errors name the step as `step`.
fn step(
    command: &mut Command,
    program: &'static str,
    step: &str,
    hint: &'static str,
) -> Result<(), PackagesError> {
    process::answer(command).map(drop).map_err(|failure| match failure {
        ProcessFailure::Start(source) => PackagesError::NoProgram { program, hint, source },
        ProcessFailure::Exit(why) => PackagesError::Step { step: step.to_owned(), why, hint },
    })
}
