//! Build packages of other languages, installed in a folder of the project or of the user without
//! changes to the machine.

mod npm;
mod python;
mod shared;

pub use npm::NodeModules;
pub use python::PythonEnvironment;
pub use shared::SharedEnvironments;

use crate::process::{self, ProcessFailure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Message of the operating system about a full disk, which package managers print.
const DISK_FULL: &str = "No space left on device";

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
            Self::Step { why, .. } if why.contains(DISK_FULL) => "free some space on the disk",
            Self::NoProgram { hint, .. } | Self::Step { hint, .. } => hint,
            Self::File { .. } => "see that the file can be read, and its folder written",
        }
    }

    fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}

/// Runs one installation step with `program` and returns its output. Errors name the step as
/// `step`.
fn step(
    command: &mut Command,
    program: &'static str,
    step: &str,
    hint: &'static str,
) -> Result<String, PackagesError> {
    process::answer(command).map_err(|failure| match failure {
        ProcessFailure::Start(source) => PackagesError::NoProgram { program, hint, source },
        ProcessFailure::Exit(why) => PackagesError::Step { step: step.to_owned(), why, hint },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_has_its_hint() {
        let failed =
            |why: &str| PackagesError::Step { step: "pip".into(), why: why.into(), hint: "network?" };
        assert_eq!(failed("ERROR: [Errno 28] No space left on device").hint(), "free some space on the disk");
        assert_eq!(failed("ERROR: no route").hint(), "network?");
    }
}
