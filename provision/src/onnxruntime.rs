//! ONNX Runtime's shared library, extracted from its wheel on PyPI.

use crate::process::{self, ProcessFailure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A release of ONNX Runtime for one platform, pinned by checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnnxRuntimeRelease {
    platform: &'static str,
    wheel_sha256: &'static str,
}

/// Error of an installation of ONNX Runtime.
#[derive(Debug, thiserror::Error)]
pub enum OnnxRuntimeError {
    /// No wheel is pinned for the platform.
    #[error("no ONNX Runtime is pinned for {os} on {architecture}")]
    Unsupported {
        /// Operating system.
        os: &'static str,
        /// Processor architecture.
        architecture: &'static str,
    },
    /// Downloading or unpacking failed.
    #[error("{step}: {why}")]
    Step {
        /// The failed command.
        step: String,
        /// Output of the command.
        why: String,
    },
    /// A file could not be written.
    #[error("cannot put ONNX Runtime into {folder}: {source}")]
    Write {
        /// Destination folder.
        folder: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

impl OnnxRuntimeError {
    /// Suggested remedy, for people.
    #[must_use]
    pub fn hint(&self) -> String {
        let manual = format!(
            "get libonnxruntime.so {} from https://github.com/microsoft/onnxruntime/releases and name it with WEIR_ONNXRUNTIME",
            OnnxRuntimeRelease::VERSION
        );
        match self {
            Self::Unsupported { .. } => manual,
            Self::Step { .. } => format!(
                "see that `python3 -m pip` works (Debian and Ubuntu: `apt-get install python3-pip`) and reaches PyPI; or {manual}"
            ),
            Self::Write { .. } => "free some space, or choose a folder that you may write to".into(),
        }
    }
}

impl OnnxRuntimeRelease {
    /// The release that Weir is tested with.
    pub const VERSION: &str = "1.31.1";
    /// File name of the installed library.
    pub const FILE_NAME: &str = "libonnxruntime.so";
    /// Names in the wheel of its licence and of the licences of its parts.
    const NOTICES: [&str; 2] = ["LICENSE", "ThirdPartyNotices.txt"];

    /// The wheel for this machine.
    pub fn for_this_machine() -> Result<Self, OnnxRuntimeError> {
        let os = std::env::consts::OS;
        let architecture = std::env::consts::ARCH;
        match (os, architecture) {
            ("linux", "x86_64") => Ok(Self {
                platform: "manylinux_2_28_x86_64",
                wheel_sha256: "5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f",
            }),
            ("linux", "aarch64") => Ok(Self {
                platform: "manylinux_2_28_aarch64",
                wheel_sha256: "da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3",
            }),
            _ => Err(OnnxRuntimeError::Unsupported { os, architecture }),
        }
    }

    /// Paths of the licences of the library in `folder`, which [`fetch`](Self::fetch) puts there.
    #[must_use]
    pub fn notices(folder: &Path) -> [PathBuf; 2] {
        Self::NOTICES.map(|name| folder.join(format!("onnxruntime-{name}")))
    }

    /// Downloads the library and its licences into `folder` with pip, from pip's configured index;
    /// pip verifies the checksum. Replaces an existing library. Calls `on_step` before each step.
    /// Returns the path of the library.
    pub fn fetch(&self, folder: &Path, on_step: &mut dyn FnMut(&str)) -> Result<PathBuf, OnnxRuntimeError> {
        let write = |source| OnnxRuntimeError::Write { folder: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(write)?;
        // Inside `folder`, so that the last step is a rename within one file system.
        let scratch = tempfile::Builder::new().prefix(".fetch-").tempdir_in(folder).map_err(write)?;
        let wheel = self.download(scratch.path(), on_step)?;
        let unpacked = scratch.path().join("unpacked");
        on_step("unpack libonnxruntime.so from it");
        step(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
        for (name, notice) in Self::NOTICES.iter().zip(Self::notices(folder)) {
            std::fs::rename(unpacked.join("onnxruntime").join(name), notice).map_err(write)?;
        }
        let library = unpacked.join(format!("onnxruntime/capi/{}.{}", Self::FILE_NAME, Self::VERSION));
        let place = folder.join(Self::FILE_NAME);
        std::fs::File::open(&library).and_then(|file| file.sync_all()).map_err(write)?;
        std::fs::rename(&library, &place).map_err(write)?;
        Ok(place)
    }

    fn download(&self, scratch: &Path, on_step: &mut dyn FnMut(&str)) -> Result<PathBuf, OnnxRuntimeError> {
        let write = |source| OnnxRuntimeError::Write { folder: scratch.to_owned(), source };
        on_step(&format!("python3 -m pip download onnxruntime=={} (24 MB, checksum pinned)", Self::VERSION));
        let requirements = scratch.join("requirements.txt");
        let pin = format!("onnxruntime=={} --hash=sha256:{}\n", Self::VERSION, self.wheel_sha256);
        std::fs::write(&requirements, pin).map_err(write)?;
        step(
            Command::new("python3")
                .args(["-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--quiet"])
                // Any wheel of the platform will do, for any version of Python: only the library in
                // the wheel is used.
                .args([
                    "--no-deps",
                    "--only-binary=:all:",
                    "--python-version=3.11",
                    "--implementation=cp",
                    "--abi=cp311",
                ])
                .args(["--platform", self.platform, "--require-hashes", "-r"])
                .arg(&requirements)
                .arg("--dest")
                .arg(scratch),
        )?;
        let mut files = std::fs::read_dir(scratch).map_err(write)?.flatten().map(|entry| entry.path());
        files.find(|path| path.extension().is_some_and(|end| end == "whl")).ok_or_else(|| {
            OnnxRuntimeError::Step { step: "python3 -m pip download".into(), why: "it left no wheel".into() }
        })
    }
}

fn step(command: &mut Command) -> Result<(), OnnxRuntimeError> {
    process::answer(command).map(drop).map_err(|why: ProcessFailure| {
        let words = std::iter::once(command.get_program()).chain(command.get_args()).take(4);
        let step = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        OnnxRuntimeError::Step { step, why: why.to_string() }
    })
}
