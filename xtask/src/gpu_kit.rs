//! `cargo xtask gpu-kit`.

use crate::functions::{self, BuildFunctionsArgs};
use crate::models;
use crate::process;
use crate::repo::Repo;
use crate::setup::{self, report};
use crate::weir;
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum size of the kit, including results of earlier steps: 60 MiB.
const KIT_BYTES_MAX: u64 = 60 << 20;

/// Entries that the command replaces. `results/`, with files of earlier steps, belongs to the user.
const PROGRAM: &str = "weir.gz";
const ONNXRUNTIME: &str = "libonnxruntime.so.gz";
const MODELS: &str = "models";

/// Function that the node of the kit runs, in `functions/`.
const FUNCTION: &str = "infer";

/// Scripts of the kit: path in the repository, name in the kit.
const SCRIPTS: [(&str, &str); 4] = [
    ("bench/gpu/go.sh", "go.sh"),
    ("bench/gpu/models.py", "models.py"),
    ("bench/gpu/serve.py", "serve.py"),
    ("bench/python/pytorch_gpu.py", "pytorch_gpu.py"),
];

/// Make the folder to copy to a machine with an NVIDIA GPU, `.gpu/`: `weir`, models without their
/// weights, a function, and the scripts that check and measure
///
/// The machine needs the driver and bash, but neither network nor Rust. There, models get random
/// weights (with Python 3), and are compared with PyTorch if it is installed. The folder has at
/// most 60 MiB, and contains no NVIDIA software. Files in `.gpu/results` are kept: put the results
/// of a step there, and the next step resumes from them. docs/guides/check-gpu.md, "Steps", lists
/// the steps.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuKitArgs {
    /// Build profile of `weir`
    #[arg(long, value_name = "PROFILE", default_value = "dist")]
    profile: String,
    /// Use this `weir` instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    program: Option<PathBuf>,
    /// ONNX model to include without its weights; may be repeated [default: resnet50 and minilm of
    /// `cargo xtask models`]
    #[arg(long = "model", value_name = "FILE")]
    models: Vec<PathBuf>,
    /// Folder to create
    #[arg(long, value_name = "FOLDER", default_value = ".gpu")]
    out: PathBuf,
}

pub(crate) fn run(repo: &Repo, args: &GpuKitArgs) -> Result<()> {
    let models = match &args.models[..] {
        [] => vec![models::resnet50(repo)?, models::minilm(repo)?],
        given => given.to_vec(),
    };
    let weir = match &args.program {
        Some(program) => program.clone(),
        None => weir::build_with(repo, &args.profile)?,
    };
    let kit = repo.root().join(&args.out);
    clear(&kit)?;
    pack_program(&weir, &kit.join(PROGRAM))?;
    compress(&setup::onnxruntime(repo)?, &kit.join(ONNXRUNTIME))?;
    let function = PathBuf::from(FUNCTION).with_extension("wasm");
    copy(&built_function(repo, &function)?, &kit.join(function))?;
    for (from, name) in SCRIPTS {
        copy(&repo.root().join(from), &kit.join(name))?;
    }
    let mut strip = Command::new("python3");
    strip.arg(kit.join("models.py")).arg("strip").args(&models).arg("--out").arg(kit.join(MODELS));
    process::answer(&mut strip)?;
    for (name, bytes) in entries(&kit)? {
        report("packed", &format!("{:>10} {}", size(bytes), repo.show(&kit.join(name))));
    }
    let bytes = keep_within(&kit, KIT_BYTES_MAX)?;
    report("made", &format!("{} of at most {} in {}", size(bytes), size(KIT_BYTES_MAX), repo.show(&kit)));
    let go = repo.show(&kit.join("go.sh")).to_string();
    eprintln!(
        "\nOn the machine with the GPU: bash {go} 1\nThe other steps: docs/guides/check-gpu.md, \"Steps\""
    );
    Ok(())
}

/// Creates the folder, and removes the products of an earlier run.
fn clear(kit: &Path) -> Result<()> {
    fs::create_dir_all(kit).with_context(|| format!("cannot make {}", kit.display()))?;
    match fs::remove_dir_all(kit.join(MODELS)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", kit.display()))
        }
        _ => Ok(()),
    }
}

/// Compresses a program without its symbols: with symbols, a test build exceeds the kit's maximum
/// size.
fn pack_program(from: &Path, to: &Path) -> Result<()> {
    let stripped = to.with_extension("stripped");
    process::answer(Command::new("strip").arg("-o").arg(&stripped).arg(from))?;
    compress(&stripped, to)?;
    fs::remove_file(&stripped).with_context(|| format!("cannot remove {}", stripped.display()))
}

fn compress(from: &Path, to: &Path) -> Result<()> {
    let packed = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    // Without name and time, equal files give equal bytes.
    process::run(Command::new("gzip").args(["--no-name", "--stdout"]).arg(from).stdout(packed))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Returns the path of the component, and builds it if it does not exist.
fn built_function(repo: &Repo, file: &Path) -> Result<PathBuf> {
    let component = repo.built_functions().join(file);
    if !component.exists() {
        functions::run(repo, &BuildFunctionsArgs::from_names(&[FUNCTION]))?;
    }
    Ok(component)
}

/// Returns the size of a folder, or an error if it exceeds `bytes_max`.
fn keep_within(folder: &Path, bytes_max: u64) -> Result<u64> {
    let bytes = entries(folder)?.iter().map(|(_, bytes)| bytes).sum();
    if bytes > bytes_max {
        bail!(
            "{} has {}, and may have {}; carry a smaller program (--profile dist), fewer models, or fewer results",
            folder.display(),
            size(bytes),
            size(bytes_max)
        );
    }
    Ok(bytes)
}

/// Entries of a folder by name, with sizes. The size of a subfolder includes its contents.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let read = || {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            entries.push((PathBuf::from(entry.file_name()), entry.metadata()?));
        }
        Ok::<_, std::io::Error>(entries)
    };
    let found = read().with_context(|| format!("cannot read {}", folder.display()))?;
    let sized = found.into_iter().map(|(name, meta)| {
        let inside = if meta.is_dir() { entries(&folder.join(&name))? } else { Vec::new() };
        Ok((name, meta.len() + inside.iter().map(|(_, bytes)| bytes).sum::<u64>()))
    });
    let mut entries = sized.collect::<Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// Human-readable size, rounded up.
fn size(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{} KiB", bytes.div_ceil(1 << 10))
    } else {
        format!("{} MiB", bytes.div_ceil(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_size_includes_subfolders_and_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("models")).unwrap();
        fs::write(folder.path().join("models/m.onnx"), [0; 1000]).unwrap();
        fs::write(folder.path().join("go.sh"), [0; 10]).unwrap();
        let folder_bytes = folder.path().join("models").metadata().unwrap().len();
        assert_eq!(
            entries(folder.path()).unwrap(),
            [("go.sh".into(), 10), ("models".into(), 1000 + folder_bytes)]
        );
        let bytes = 1010 + folder_bytes;
        assert_eq!(keep_within(folder.path(), bytes).unwrap(), bytes);
        let error = keep_within(folder.path(), bytes - 1).unwrap_err().to_string();
        assert!(error.contains("--profile dist"), "{error}");
    }

    #[test]
    fn packed_program_runs_and_has_no_symbols() {
        let folder = tempfile::tempdir().unwrap();
        let packed = folder.path().join(PROGRAM);
        let program = folder.path().join("program");
        // This test executable has symbols.
        let own = std::env::current_exe().unwrap();
        pack_program(&own, &packed).unwrap();
        let unpack = r#"gzip -dc "$1" >"$2" && chmod 755 "$2" && "$2" --list"#;
        let mut unpack_and_run = Command::new("sh");
        unpack_and_run.args(["-c", unpack, "sh"]).arg(&packed).arg(&program);
        assert!(process::answer(&mut unpack_and_run).unwrap().contains("gpu_kit::tests"));
        assert_eq!(process::answer(Command::new("nm").arg(&program)).unwrap(), "", "it has symbols");
        assert!(program.metadata().unwrap().len() < own.metadata().unwrap().len());
        assert_eq!(entries(folder.path()).unwrap().len(), 2, "nothing else is left");
    }

    #[test]
    fn earlier_results_survive_a_new_kit() {
        let kit = tempfile::tempdir().unwrap();
        for file in ["models/old.onnx", "results/gpu.json"] {
            let file = kit.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        clear(kit.path()).unwrap();
        assert!(!kit.path().join("models").exists() && kit.path().join("results/gpu.json").exists());
    }
}
