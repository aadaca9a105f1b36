//! `weir models run`.

use crate::client::{Client, ask_first, refusal};
use crate::commands::CommandContext;
use crate::commands::invoke::{BodySource, show};
use crate::error::Problem;
use anyhow::Result;
use serde::de::IgnoredAny;
use ureq::http::{HeaderValue, Method};
use weir_types::api::ERROR_CODE_HEADER;
use weir_types::{ErrorCode, Name, VersionRef};

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
        let problem = refusal(answer, &format!("run {name}")).about(name);
        return Err(match hint(&problem, name, client) {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
        .into());
    }
    let hint = format!("`weir logs {name}` shows what a function wrote");
    show(answer, false, name.as_str(), &hint, context.output)
}

/// Advice for a refused run that depends on what `name` is; `None`: the advice for the error code.
fn hint(problem: &Problem, name: &Name, client: &Client) -> Option<String> {
    let is_there = |path: String| client.get::<IgnoredAny>(&path, "look for the name").is_ok();
    match problem.code()? {
        ErrorCode::ModelNotFound if is_there(format!("/v1/functions/{name}")) => {
            Some(format!("`weir invoke {name}` calls the function"))
        }
        ErrorCode::ModelNotFound => Some(
            "`weir models`, `weir workflows` and `weir functions` list what the node has".to_owned(),
        ),
        ErrorCode::InvalidRequest if problem.to_string().contains("not an inference request") => Some(
            "write it as {\"inputs\": [{\"name\": NAME, \"datatype\": TYPE, \"shape\": [N, ...], \"data\": [...]}]}"
                .to_owned(),
        ),
        ErrorCode::InvalidRequest if is_there(format!("/v1/workflows/{name}")) => {
            Some(format!("`weir workflows show {name}` shows the inputs"))
        }
        ErrorCode::InvalidRequest if is_there(format!("/v1/models/{name}")) => {
            Some(format!("`weir models show {name}` shows the inputs"))
        }
        _ => None,
    }
}
