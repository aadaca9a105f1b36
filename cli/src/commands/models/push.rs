//! `weir models push`: the upload.

use crate::client::UploadReader;
use crate::commands::collection::Collection;
use crate::error::Problem;
use crate::onnx;
use anyhow::Result;
use std::convert::Infallible;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use weir_types::api::ModelPushed;
use weir_types::{LABELS_BYTES_MAX, Labels, Name};

/// Number of labels that `weir models show` prints.
const LABELS_SHOWN: usize = 5;

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
    /// The name of the form's field. Its characters are those that need no escapes there.
    fn field(&self) -> Result<String> {
        let Some(output) = &self.output else { return Ok("labels".to_owned()) };
        if output.is_empty() || output.contains(|c: char| c.is_control() || matches!(c, '"' | '\\')) {
            let text = format!("--labels {output:?}=...: not the name of an output");
            return Err(Problem::usage(text).hint("`weir models show` lists the outputs").into());
        }
        Ok(format!("labels.{output}"))
    }

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

/// Sends the model in `file`, and its labels, to `path`.
pub(super) fn push(
    models: &Collection,
    path: &str,
    name: &Name,
    file: &Path,
    labels: &[LabelsFile],
) -> Result<ModelPushed> {
    // Unreadable labels should not wait for the model.
    let form = if labels.is_empty() { None } else { Some(Form::new(labels)?) };
    let parts = onnx::open(file)?;
    let model_bytes = parts.length_bytes();
    let model: Box<dyn Read + Send> = Box::new(parts.reader());
    let (source, bytes, headers) = match form {
        None => (model, model_bytes, Vec::new()),
        Some(Form { boundary, start, end }) => {
            let bytes = model_bytes + (start.len() + end.len()) as u64;
            let source = Cursor::new(start).chain(model).chain(Cursor::new(end));
            let content_type = format!("multipart/form-data; boundary={boundary}");
            (Box::new(source) as Box<dyn Read + Send>, bytes, vec![("content-type", content_type)])
        }
    };
    let what = format!("sending {name}");
    let mut upload = UploadReader::new(source, bytes, models.output, &what, "checking and optimising it");
    models.client.put(path, &format!("push {name}"), &headers, &mut upload)
}

/// Form around a model.
struct Form {
    boundary: String,
    start: Vec<u8>,
    end: Vec<u8>,
}

impl Form {
    fn new(labels: &[LabelsFile]) -> Result<Self> {
        // No model contains it by chance.
        let boundary = format!("weir-{:032x}", rand::random::<u128>());
        let head = |field: &str| {
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{field}\"\r\n\r\n").into_bytes()
        };
        let mut start = Vec::new();
        for file in labels {
            start.extend(head(&file.field()?));
            start.extend(file.read()?);
            start.extend(b"\r\n");
        }
        start.extend(head("model"));
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        Ok(Self { boundary, start, end })
    }
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

    fn labels(text: &str) -> LabelsFile {
        text.parse().unwrap_or_else(|never| match never {})
    }

    #[test]
    fn output_is_before_the_file_of_its_labels() {
        let field = |text: &str| labels(text).field().map_err(|error| error.to_string());
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
        let error = Form::new(&[file]).err().unwrap().to_string();
        assert!(error.contains("has more than the 524288 bytes of labels"), "{error}");
    }
}
