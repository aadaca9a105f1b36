//! Forms around a file, with fields before it.

use crate::error::Problem;
use anyhow::Result;
use weir_types::{Labels, ModelLabels, ModelManifest};

/// Fields of a form before the file of a model: names and values.
pub(crate) type FormFields = Vec<(String, Vec<u8>)>;

/// A form, without its file.
pub(super) struct Form {
    pub(super) content_type: String,
    /// The bytes before the file.
    pub(super) start: Vec<u8>,
    /// The bytes after the file.
    pub(super) end: Vec<u8>,
}

impl Form {
    /// A form with `fields`, and the file in the field `file`.
    pub(super) fn new(fields: FormFields, file: &str) -> Self {
        // No file contains it by chance.
        let boundary = format!("weir-{:032x}", rand::random::<u128>());
        let head = |field: &str| {
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{field}\"\r\n\r\n").into_bytes()
        };
        let mut start = Vec::new();
        for (name, value) in fields {
            start.extend(head(&name));
            start.extend(value);
            start.extend(b"\r\n");
        }
        start.extend(head(file));
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        Self { content_type: format!("multipart/form-data; boundary={boundary}"), start, end }
    }
}

/// A model's manifest and labels as fields of a form. Labels may be longer than a manifest.
pub(crate) fn manifest_fields(manifest: &ModelManifest) -> Result<FormFields> {
    let settings = ModelManifest { labels: ModelLabels::default(), ..manifest.clone() };
    let mut fields = vec![("manifest".to_owned(), serde_json::to_vec(&settings)?)];
    let lines = |labels: &Labels| labels.iter().collect::<Vec<_>>().join("\n").into_bytes();
    match &manifest.labels {
        ModelLabels::OnlyOutput(labels) => fields.push((labels_field(None)?, lines(labels))),
        ModelLabels::ByOutput(outputs) => {
            for (output, labels) in outputs {
                fields.push((labels_field(Some(output))?, lines(labels)));
            }
        }
    }
    Ok(fields)
}

/// Name of the field with the labels of an output; `None`: of the only output. The characters of the
/// name are those that need no escapes in a form.
pub(crate) fn labels_field(output: Option<&str>) -> Result<String> {
    let Some(output) = output else { return Ok("labels".to_owned()) };
    if output.is_empty() || output.contains(|c: char| c.is_control() || matches!(c, '"' | '\\')) {
        let text = format!("labels of {output:?}: not the name of an output");
        return Err(Problem::usage(text).hint("`weir models show` lists the outputs").into());
    }
    Ok(format!("labels.{output}"))
}
