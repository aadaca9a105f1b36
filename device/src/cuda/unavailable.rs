//! Errors of the search for GPUs and NVIDIA's libraries.

use super::search::DRIVER_VARIABLE;
use std::path::PathBuf;

/// Why no GPU, or no library for it, can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The environment names a missing file.
    #[error("the NVIDIA driver is not at {path}, where {DRIVER_VARIABLE} says it is")]
    NotWhereSet {
        /// The configured path.
        path: PathBuf,
    },
    /// The file is in none of the searched places.
    #[error("no {what} was found (looked for {file} in {places}); {advice}")]
    NotFound {
        /// Name of the missing component.
        what: &'static str,
        /// Its file name.
        file: String,
        /// The searched places.
        places: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The file cannot be opened or initialised.
    #[error("{path} cannot be used: {why}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file lacks functions that Weir calls.
    #[error(
        "{path} lacks {functions}; it is too old for Weir, or not the driver: install NVIDIA's driver 550 or newer"
    )]
    MissingFunctions {
        /// The file.
        path: PathBuf,
        /// The missing functions.
        functions: String,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver at {path} is for CUDA {found}; Weir needs one for CUDA {needed} or newer (driver 550): update it"
    )]
    DriverTooOld {
        /// The file.
        path: PathBuf,
        /// The version of CUDA that it implements.
        found: String,
        /// The required version.
        needed: String,
    },
    /// The library is only installed in versions that Weir does not know.
    #[error("{path} is of version {found}, Weir knows {known}; {advice}")]
    WrongVersion {
        /// The newest file.
        path: PathBuf,
        /// Its major version.
        found: u32,
        /// The supported major versions.
        known: &'static str,
        /// The remedy.
        advice: &'static str,
    },
    /// The library is only installed in versions that need a newer driver.
    #[error(
        "{path} is for CUDA {found}, and the driver for CUDA {driver}: update the driver, or install version {driver} of the library as well"
    )]
    TooNewForDriver {
        /// The file.
        path: PathBuf,
        /// Its major version.
        found: u32,
        /// The driver's major version.
        driver: u32,
    },
    /// The driver works, but shows no device to this process.
    #[error(
        "the NVIDIA driver at {path} sees no GPU: check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that a container was given one"
    )]
    NoDevice {
        /// The driver's file.
        path: PathBuf,
    },
}
