//! Why there is nothing to work with.

use super::search::DRIVER_VARIABLE;
use std::path::PathBuf;

/// Why no GPU, or no library for it, can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The environment names a file that is not there.
    #[error("the NVIDIA driver is not at {path}, where {DRIVER_VARIABLE} says it is")]
    NotWhereSet {
        /// Where it should be.
        path: PathBuf,
    },
    /// There is no such file in any of the places.
    #[error("no {what} was found (looked for {file} in {places}); {advice}")]
    NotFound {
        /// What is missing.
        what: &'static str,
        /// Its file name.
        file: String,
        /// Where it was looked for.
        places: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The file cannot be opened, or does not start.
    #[error("{path} cannot be used: {why}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It lacks functions that Weir calls.
    #[error(
        "{path} lacks {functions}; it is too old for Weir, or not the driver: install NVIDIA's driver 550 or newer"
    )]
    MissingFunctions {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        functions: String,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver at {path} is for CUDA {found}; Weir needs one for CUDA {needed} or newer (driver 550): update it"
    )]
    DriverTooOld {
        /// The file.
        path: PathBuf,
        /// What it implements.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// A library is there in versions that Weir does not know only.
    #[error("{path} is of version {found}, Weir knows {known}; {advice}")]
    WrongVersion {
        /// The newest file.
        path: PathBuf,
        /// Its major version.
        found: u32,
        /// The major versions that would do.
        known: &'static str,
        /// What to do about it.
        advice: &'static str,
    },
    /// A library is there in versions only that the driver is too old for.
    #[error(
        "{path} is for CUDA {found}, and the driver for CUDA {driver}: update the driver, or install version {driver} of the library beside it"
    )]
    TooNewForDriver {
        /// The file.
        path: PathBuf,
        /// Its major version.
        found: u32,
        /// The driver's.
        driver: u32,
    },
    /// The driver works, and has no device for us.
    #[error(
        "the NVIDIA driver at {path} sees no GPU: check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that a container was given one"
    )]
    NoDevice {
        /// The driver's file.
        path: PathBuf,
    },
}
