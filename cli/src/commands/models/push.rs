//! `weir models push`.

use super::copies::Copies;
use super::upload_settings::ModelSettingsArgs;
use super::{is_at, lacking, removed, signature};
use crate::commands::canary::{self, CanaryArgs};
use crate::commands::collection::Collection;
use crate::commands::shadow::ShadowArgs;
use crate::error::Problem;
use crate::project::not_visible;
use crate::uploads::{FormFields, ModelUpload, labels_field};
use anyhow::Result;
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use weir_types::api::{Model, ModelPushed};
use weir_types::{LABELS_BYTES_MAX, Labels, Name};

/// Number of labels that `weir models show` prints.
const LABELS_SHOWN: usize = 5;

/// Push a model: an ONNX file, and the files of its external weights, if it has any
#[derive(Debug, clap::Args)]
pub(super) struct PushArgs {
    /// Name of the model for requests and functions
    name: Name,
    /// ONNX file, or folder with one ONNX file and the files with its weights, or archive of such
    /// a folder: .tar, .tar.gz or .zip
    file: PathBuf,
    #[command(flatten)]
    upload: UploadArgs,
}

/// Options of commands that push a model.
#[derive(Debug, clap::Args)]
pub(super) struct UploadArgs {
    /// Version number [default: the next]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    version: Option<u32>,
    #[command(flatten)]
    canary: CanaryArgs,
    #[command(flatten)]
    shadow: ShadowArgs,
    /// Give the new version no runs, except those that name it
    #[arg(long, conflicts_with = "canary")]
    preview: bool,
    #[command(flatten)]
    settings: ModelSettingsArgs,
}

pub(super) fn run(args: &PushArgs, models: &Collection) -> Result<()> {
    args.upload.push(&args.name, &args.file, models)
}

impl UploadArgs {
    /// Pushes the model in `file`, and prints the result.
    pub(super) fn push(&self, name: &Name, file: &Path, models: &Collection) -> Result<()> {
        let version = self.version.map_or_else(String::new, |version| format!("/versions/{version}"));
        let preview = self.preview.then(|| ("preview", "true".to_owned()));
        let role = self.canary.query().into_iter().chain(self.shadow.query()).chain(preview);
        let query = self.settings.query(role.collect());
        let path = format!("{}{version}{query}", models.path(name));
        // Unreadable labels should not wait for the model.
        let fields = fields(&self.settings.labels)?;
        let upload = ModelUpload { path: &path, name, file, fields, stop: None };
        let pushed = upload.send(&models.client, models.output)?;
        if let Some(warning) = Copies::count(&models.client, &pushed.model).and_then(Copies::warning) {
            models.output.note(format_args!("warning: {warning}"));
        }
        let Some(canary) = pushed.canary.filter(|canary| canary.promote_after_ms.is_some()) else {
            let is_active = pushed.canary.is_none() && pushed.shadow.is_none() && !pushed.is_preview;
            if is_active && (self.canary.is_given() || self.shadow.is_given() || self.preview) {
                models.output.note(if self.preview {
                    "this version is active: it is the first one, or an active version with the same contents was kept"
                } else {
                    "no version was active before, so this one gets all runs"
                });
            }
            return models.output.result(&pushed, described);
        };
        models.output.note(described(&pushed).trim_end());
        let now: Model = canary::wait(name, canary, &models.client, models.output)?;
        models.output.result(&now, is_at)
    }
}

/// The result of a push.
fn described(pushed: &ModelPushed) -> String {
    let ModelPushed { model, canary, shadow, is_preview, removed_versions, not_visible_on, .. } = pushed;
    let name = &model.name;
    let version = model.version;
    let canary = canary.map(|canary| {
        let percent = canary.percent;
        format!(
            "a canary with {percent} % of the runs: weir models promote {name}, or weir models rollback {name}\n"
        )
    });
    let shadow = shadow.map(|shadow| {
        let percent = shadow.percent;
        format!(
            "a shadow with copies of {percent} % of the inferences: weir models show {name} compares, weir models rollback {name} ends it\n"
        )
    });
    let preview = is_preview
        .then(|| format!("a preview, which gets no other runs: weir models promote {name} {version}\n"));
    let role = canary.or(shadow).or(preview).unwrap_or_default();
    let signature = signature(&model.signature);
    let removed = removed(removed_versions);
    let lacking = lacking(model);
    let not_visible = not_visible(not_visible_on);
    format!("pushed {name}:{version}\n{role}{signature}{removed}{lacking}{not_visible}")
}

/// File with the labels of an output: `FILE` or `OUTPUT=FILE`.
#[derive(Debug, Clone)]
pub(super) struct LabelsFile {
    /// `None`: the model's only output.
    output: Option<String>,
    path: PathBuf,
}

impl FromStr for LabelsFile {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.split_once('=') {
            // A path may contain the character, too.
            Some((output, path)) if !output.contains('/') => {
                Self { output: Some(output.to_owned()), path: path.into() }
            }
            _ => Self { output: None, path: text.into() },
        })
    }
}

impl LabelsFile {
    fn read(&self) -> Result<Vec<u8>> {
        let unreadable = |error| Problem::new(format!("cannot read {}", self.path.display())).because(error);
        let mut lines = Vec::new();
        let file = File::open(&self.path).map_err(unreadable)?;
        file.take(LABELS_BYTES_MAX as u64 + 1).read_to_end(&mut lines).map_err(unreadable)?;
        if lines.len() > LABELS_BYTES_MAX {
            let text =
                format!("{} has more than the {LABELS_BYTES_MAX} bytes of labels", self.path.display());
            return Err(Problem::new(text).hint("a file with labels has one per line").into());
        }
        Ok(lines)
    }
}

/// Reads files with labels into fields of a form.
fn fields(labels: &[LabelsFile]) -> Result<FormFields> {
    labels.iter().map(|file| Ok((labels_field(file.output.as_deref())?, file.read()?))).collect()
}

/// Describes the labels of an output by the first of them.
pub(super) fn shown(output: &str, labels: &Labels) -> String {
    let first: Vec<&str> = labels.iter().take(LABELS_SHOWN).collect();
    let more = if labels.iter().len() > LABELS_SHOWN { ", ..." } else { "" };
    format!("{output}: {} labels: {}{more}", labels.iter().len(), first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn labels(text: &str) -> LabelsFile {
        text.parse().unwrap_or_else(|never| match never {})
    }

    #[test]
    fn output_is_before_the_file_of_its_labels() {
        let field =
            |text: &str| labels_field(labels(text).output.as_deref()).map_err(|error| error.to_string());
        assert_eq!(field("names.txt").as_deref(), Ok("labels"));
        assert_eq!(field("./a=b.txt").as_deref(), Ok("labels"));
        assert_eq!(field("scores.1=a=b.txt").as_deref(), Ok("labels.scores.1"));
        assert_eq!(labels("scores.1=a=b.txt").path, Path::new("a=b.txt"));
        for wrong in ["=a.txt", "a\"b=a.txt", "a\nb=a.txt"] {
            assert!(field(wrong).unwrap_err().contains("not the name of an output"), "{wrong}");
        }
    }

    #[test]
    fn files_above_the_limit_are_refused_before_the_model_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.txt");
        std::fs::write(&path, "a".repeat(LABELS_BYTES_MAX + 1)).unwrap();
        let file = LabelsFile { output: None, path };
        let error = fields(&[file]).unwrap_err().to_string();
        assert!(error.contains("has more than the 524288 bytes of labels"), "{error}");
    }
}
