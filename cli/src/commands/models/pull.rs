//! `weir models pull`: models of other servers.

mod download;
mod hub;
mod source;

use super::push::UploadArgs;
use crate::commands::collection::Collection;
use crate::error::Problem;
use crate::onnx;
use anyhow::Result;
use download::{Downloader, RemoteFile};
use source::ModelSource;
use std::fs;
use std::path::{Component, Path, PathBuf};
use weir_types::{ContentHash, Name};

/// Push a model of another server: an https:// address, or a repository of the Hugging Face hub
///
/// The file may be an ONNX model or an archive of its folder (.tar, .tar.gz, .zip). Files with
/// external weights are downloaded as well. An interrupted download continues where it ended.
///
/// Without FILE, a repository must have one ONNX file, or onnx/model.onnx or model.onnx. REVISION is
/// a branch, tag or commit (default: main). HF_TOKEN is the token for private repositories, and
/// HF_ENDPOINT the address of another hub.
///
/// Examples:
///   weir models pull https://example.com/resnet50.onnx
///   weir models pull hf://sentence-transformers/all-MiniLM-L6-v2 minilm
///   weir models pull hf://OWNER/NAME/onnx/model_fp16.onnx@v1.0 --sha256 9f86d0...
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct PullArgs {
    /// https://HOST/PATH, or hf://OWNER/NAME[/FILE][@REVISION]
    source: ModelSource,
    /// Name of the model for requests and functions [default: from the source]
    name: Option<Name>,
    /// SHA-256 of the file, in hexadecimal; any other file is refused
    #[arg(long, value_name = "HEX")]
    sha256: Option<ContentHash>,
    #[command(flatten)]
    upload: UploadArgs,
}

pub(super) fn run(args: PullArgs, models: &Collection) -> Result<()> {
    let output = models.output;
    let name = match args.name {
        Some(name) => name,
        None => args.source.model_name()?,
    };
    let downloader = Downloader::new(output)?;
    let mut file = args.source.resolve(&downloader)?;
    if let Some(sha256) = args.sha256 {
        file.sha256 = Some(sha256);
    }
    file.check_transport()?;
    output.note(format!("pulling {}", file.url));
    let folder = folder_for(&file.url)?;
    let path = folder.join(file.file_name()?);
    let sha256 = downloader.pull(&file, &path)?;
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("onnx")) {
        for location in onnx::weight_locations(&path)? {
            pull_weights(&downloader, &file, &folder, &location)?;
        }
    }
    output.note(format!("sha256 {sha256}; --sha256 pins this file"));
    args.upload.push(&name, &path, models)?;
    // Files that stay here are only a cache: the next pull of the same source uses or replaces them.
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

/// Downloads a file with weights from its location relative to the model.
fn pull_weights(downloader: &Downloader, model: &RemoteFile, folder: &Path, location: &str) -> Result<()> {
    let is_beside = Path::new(location).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_beside || location.is_empty() {
        let text = format!("the model has weights in {location:?}, which is outside its folder");
        return Err(Problem::new(text).hint("download its files, and push their folder").into());
    }
    let path = folder.join(location);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| unwritable(parent, error))?;
    }
    let weights = model.beside(location)?;
    downloader.pull(&downloader.with_known_hash(weights)?, &path).map(drop)
}

/// The folder for the files of one source: in the user's cache, so that a later pull continues.
fn folder_for(url: &str) -> Result<PathBuf> {
    let cache = weir_provision::cache_folder().unwrap_or_else(|| std::env::temp_dir().join("weir"));
    let key = ContentHash::from_content(url.as_bytes()).to_string();
    let folder = cache.join("pulls").join(&key[..16]);
    fs::create_dir_all(&folder).map_err(|error| unwritable(&folder, error))?;
    Ok(folder)
}

fn unwritable(path: &Path, error: std::io::Error) -> Problem {
    Problem::new(format!("cannot write to {}", path.display()))
        .because(error)
        .hint("XDG_CACHE_HOME names another folder for downloads")
}
