//! Pushes of models.

use super::form::{Form, FormFields};
use crate::client::{Client, UploadReader};
use crate::files::Stoppable;
use crate::onnx;
use crate::output::OutputSettings;
use anyhow::Result;
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use weir_types::Name;
use weir_types::api::ModelPushed;

/// A model with its name.
pub(crate) struct ModelUpload<'a> {
    /// Path and query of the request.
    pub(crate) path: &'a str,
    pub(crate) name: &'a Name,
    /// ONNX file, or folder or archive with an ONNX file.
    pub(crate) file: &'a Path,
    /// Manifest and labels, if the query does not contain all settings.
    pub(crate) fields: FormFields,
    /// Set to end the upload.
    pub(crate) stop: Option<Arc<AtomicBool>>,
}

impl ModelUpload<'_> {
    /// Sends the model.
    pub(crate) fn send(self, client: &Client, output: OutputSettings) -> Result<ModelPushed> {
        let Self { path, name, file, fields, stop } = self;
        let parts = onnx::open(file)?;
        let model_bytes = parts.length_bytes();
        let model: Box<dyn Read + Send> = match stop {
            Some(stop) => Box::new(Stoppable::new(parts.reader(), stop)),
            None => Box::new(parts.reader()),
        };
        let form = if fields.is_empty() { None } else { Some(Form::new(fields, "model")) };
        let (source, bytes, headers) = match form {
            None => (model, model_bytes, Vec::new()),
            Some(Form { content_type, start, end }) => {
                let bytes = model_bytes + (start.len() + end.len()) as u64;
                let source = Cursor::new(start).chain(model).chain(Cursor::new(end));
                (Box::new(source) as Box<dyn Read + Send>, bytes, vec![("content-type", content_type)])
            }
        };
        let what = format!("sending {name}");
        let mut upload = UploadReader::new(source, bytes, output, &what, "checking and optimising it");
        client.put(path, &format!("push {name}"), &headers, &mut upload)
    }
}
