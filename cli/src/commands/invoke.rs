//! `weir invoke`.

mod body;
mod later;

use crate::client::{Client, ask_first, refusal};
use crate::commands::CommandContext;
use crate::error::{Exit, Problem};
use crate::output::OutputSettings;
use crate::settings::ClientArgs;
use anyhow::Result;
use base64::Engine as _;
pub(crate) use body::BodySource;
use later::LaterArgs;
use std::io::{IsTerminal as _, Read as _};
use ureq::http::{HeaderName, HeaderValue, Method, Response};
use ureq::{Body, SendBody};
use weir_types::api::ERROR_CODE_HEADER;
use weir_types::{ErrorCode, Name};

/// Size of the buffer for the response body.
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum length of a body that is sent without waiting for the node's `100 Continue`.
const SENT_UNASKED_BYTES_MAX: u64 = 64 << 10;

/// Call a function
///
/// Streams the response to standard output. The method is POST with data and GET without. Data that
/// is valid JSON is sent as application/json, other text as text/plain, and a file as
/// application/octet-stream, unless a header sets the type.
///
/// Examples:
///   weir invoke hello
///   weir invoke classify-digits /classify -d @seven.png -H 'content-type: image/png'
///   weir invoke embed-text /embed -d '{"text": "a sentence"}'
///   generate | weir invoke sink -d @-
///   weir invoke report -d @data.csv --async      # run in the background; see `weir invocations`
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct InvokeArgs {
    /// Name of the function
    name: Name,
    /// Path below the function's URL, with the query
    #[arg(default_value = "/")]
    path: String,
    /// HTTP method [default: POST with data, GET without]
    #[arg(long, short = 'X', value_name = "METHOD", value_parser = method)]
    method: Option<Method>,
    /// Request body: literal text, @FILE, or @- for standard input
    #[arg(long, short, value_name = "DATA")]
    data: Option<String>,
    /// Header, as 'name: value'; may be repeated
    #[arg(long = "header", short = 'H', value_name = "HEADER", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Print the response's status and headers before its body
    #[arg(long, short)]
    include: bool,
    #[command(flatten)]
    later: LaterArgs,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &InvokeArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let answer = call(args, &client)?;
    if answer.headers().contains_key(ERROR_CODE_HEADER) {
        // The error is Weir's, not the function's response.
        let problem = refusal(answer, &format!("invoke {}", args.name)).about(&args.name);
        return Err(hint_other_kind(problem, &args.name, &client).into());
    }
    if args.later.is_async {
        return later::run(args, answer, &client, context);
    }
    let hint = format!("`weir logs {}` shows what it wrote", args.name);
    show(answer, args.include, args.name.as_str(), &hint, context.output)
}

/// Adds the command that runs `name`, if it is no function but a workflow or a model.
fn hint_other_kind(problem: Problem, name: &Name, client: &Client) -> Problem {
    if problem.code() != Some(ErrorCode::FunctionNotFound) {
        return problem;
    }
    let is_there = |path: String| client.get::<serde_json::Value>(&path, "look for the name").is_ok();
    let kind = if is_there(format!("/v1/workflows/{name}")) {
        "workflow"
    } else if is_there(format!("/v1/models/{name}")) {
        "model"
    } else {
        return problem;
    };
    problem
        .hint(format!("{name} is a {kind}: run it with `weir models run {name} -d '{{\"inputs\": [...]}}'`"))
}

/// Prints the response of `who`. A status of 400 or more is an error; `hint` is shown for a status
/// of 500 or more.
pub(crate) fn show(
    answer: Response<Body>,
    include: bool,
    who: &str,
    hint: &str,
    output: OutputSettings,
) -> Result<()> {
    let status = answer.status();
    if output.json {
        as_json(answer, output)?;
    } else {
        pass_on(answer, include, output)?;
    }
    if status.as_u16() >= 400 {
        let problem = Problem::new(format!("{who} answered {status}")).exit(Exit::FunctionFailed);
        return Err(if status.is_server_error() { problem.hint(hint) } else { problem }.into());
    }
    Ok(())
}

fn call(args: &InvokeArgs, client: &Client) -> Result<Response<Body>> {
    let body = args.data.as_deref().map(BodySource::read).transpose()?;
    let method = args.method.clone().unwrap_or(if body.is_some() { Method::POST } else { Method::GET });
    let path = format!("/fn/{}/{}", args.name, args.path.trim_start_matches('/'));
    let content_type = body.as_ref().map(BodySource::content_type);
    let length = body.as_ref().and_then(BodySource::length_bytes);
    let send = body.map_or_else(SendBody::none, BodySource::send);
    let mut request = client.request(method, &path, send)?;
    let headers = request.headers_mut();
    if let Some(content_type) = content_type {
        headers.insert("content-type", HeaderValue::from_static(content_type));
    }
    if let Some(length) = length {
        headers.insert("content-length", length.into());
    }
    if length.is_none_or(|length| length > SENT_UNASKED_BYTES_MAX) {
        ask_first(headers);
    }
    // Headers from the arguments replace the defaults; repeated headers are all sent.
    for (name, _) in &args.headers {
        headers.remove(name);
    }
    for (name, value) in &args.headers {
        headers.append(name, value.clone());
    }
    args.later.tell(headers)?;
    client.send(request)
}

fn pass_on(answer: Response<Body>, with_head: bool, output: OutputSettings) -> Result<()> {
    if with_head {
        output.line(&format!("{:?} {}", answer.version(), answer.status()))?;
        for (name, value) in answer.headers() {
            output.line(&format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))?;
        }
        output.line(&"")?;
    }
    let mut body = answer.into_body().into_reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut last = b'\n';
    loop {
        let count = body.read(&mut chunk).map_err(cut_short)?;
        let Some(end) = chunk[..count].last() else { break };
        last = *end;
        output.bytes(&chunk[..count])?;
    }
    // On a terminal, end the last line. A file gets the exact bytes.
    if last != b'\n' && std::io::stdout().is_terminal() { output.line(&"") } else { Ok(()) }
}

fn as_json(answer: Response<Body>, output: OutputSettings) -> Result<()> {
    let (head, body) = answer.into_parts();
    let mut bytes = Vec::new();
    body.into_reader().read_to_end(&mut bytes).map_err(cut_short)?;
    let headers: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let mut shown = serde_json::json!({ "status": head.status.as_u16(), "headers": headers });
    match String::from_utf8(bytes) {
        Ok(text) => shown["body"] = text.into(),
        Err(error) => {
            shown["body_base64"] = base64::engine::general_purpose::STANDARD.encode(error.as_bytes()).into();
        }
    }
    output.result(&shown, |_| String::new())
}

fn cut_short(error: std::io::Error) -> Problem {
    Problem::new("the response broke off")
        .because(error)
        .exit(Exit::Refused)
        .hint("`weir logs NAME` may show why")
}

pub(crate) fn method(text: &str) -> Result<Method, String> {
    Method::from_bytes(text.to_ascii_uppercase().as_bytes()).map_err(|_| "not an HTTP method".into())
}

pub(crate) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'name: value'")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} cannot be a header's name"))?;
    let value = value.trim().parse().map_err(|_| format!("{value:?} cannot be a header's value"))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_methods_are_parsed_like_curl() {
        assert_eq!(
            header("X-A:b: c").unwrap(),
            (HeaderName::from_static("x-a"), HeaderValue::from_static("b: c"))
        );
        assert!(header("novalue").is_err());
        assert!(header("bad name: x").is_err());
        assert!(header("a: b\r\nc: d").is_err());
        assert_eq!(method("patch").unwrap(), Method::PATCH);
        assert!(method("GE T").is_err());
    }
}
