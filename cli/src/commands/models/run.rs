//! `weir models run`.

use crate::client::{Client, ask_first, refusal};
use crate::commands::CommandContext;
use crate::commands::invoke::{BodySource, show};
use anyhow::Result;
use ureq::http::{HeaderValue, Method};
use weir_types::api::ERROR_CODE_HEADER;
use weir_types::{Name, VersionRef};

/// Run a model, tensor function or workflow, and print its response
///
/// The request and the response are JSON of the Open Inference Protocol. `weir models show NAME`
/// has the names, types and shapes of the inputs.
///
/// Examples:
///   weir models run scale -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
///   weir models run digits -d @request.json --version 2
///   weir models run digits -d @request.json --version stable
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct RunArgs {
    /// Name of the model, tensor function or workflow
    name: Name,
    /// Request: JSON text, @FILE, or @- for standard input
    #[arg(long, short, value_name = "DATA")]
    data: String,
    /// Version or alias to run [default: the active version, or its canary]
    #[arg(long, value_name = "VERSION")]
    version: Option<VersionRef>,
}

pub(super) fn run(args: &RunArgs, client: &Client, context: &CommandContext) -> Result<()> {
    let RunArgs { name, data, version } = args;
    let body = BodySource::read(data)?;
    let length = body.length_bytes();
    let version = version.as_ref().map_or_else(String::new, |version| format!("/versions/{version}"));
    let path = format!("/v2/models/{name}{version}/infer");
    let mut request = client.request(Method::POST, &path, body.send())?;
    let headers = request.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    if let Some(length) = length {
        headers.insert("content-length", length.into());
    }
    ask_first(headers);
    let answer = client.send(request)?;
    if answer.headers().contains_key(ERROR_CODE_HEADER) {
        let hint = format!(
            "`weir models show {name}` has the inputs of a model, `weir workflows show {name}` those of a workflow"
        );
        return Err(refusal(answer, &format!("run {name}")).hint(hint).into());
    }
    let hint = format!("`weir logs {name}` shows what a function wrote");
    show(answer, false, name.as_str(), &hint, context.output)
}
