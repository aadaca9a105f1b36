//! `weir invoke --async`.

use super::InvokeArgs;
use crate::client::Client;
use crate::commands::{CommandContext, invocations};
use crate::error::{Exit, Problem};
use anyhow::Result;
use ureq::Body;
use ureq::http::{HeaderMap, HeaderValue, Response};
use weir_types::api::{CALLBACK_HEADER, Invocation};

/// Maximum length of the response to an asynchronous call.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Options of an asynchronous invocation.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Asynchronous")]
pub(super) struct LaterArgs {
    /// Run the call asynchronously and print the invocation's ID; the node keeps the response
    #[arg(long = "async")]
    pub(super) is_async: bool,
    /// Idempotency key: the node accepts an equal call with the same key only once
    #[arg(long, value_name = "KEY", requires = "is_async")]
    idempotency_key: Option<String>,
    /// URL to POST the result to; the function's outbound_hosts must include its host
    #[arg(long, value_name = "URL", requires = "is_async")]
    callback: Option<String>,
    /// Wait for the end and print the response
    #[arg(long, requires = "is_async")]
    wait: bool,
}

impl LaterArgs {
    /// Adds the headers of an asynchronous call to the request.
    pub(super) fn tell(&self, headers: &mut HeaderMap) -> Result<()> {
        if !self.is_async {
            return Ok(());
        }
        headers.append("prefer", HeaderValue::from_static("respond-async"));
        for (name, value) in [("idempotency-key", &self.idempotency_key), (CALLBACK_HEADER, &self.callback)] {
            if let Some(value) = value {
                let value = HeaderValue::from_str(value).map_err(|error| {
                    Problem::usage(format!("{value:?} cannot be sent as {name}")).because(error)
                })?;
                headers.insert(name, value);
            }
        }
        Ok(())
    }
}

/// Prints the ID of the accepted invocation, or waits for its end and prints the response.
pub(super) fn run(
    args: &InvokeArgs,
    mut answer: Response<Body>,
    client: &Client,
    context: &CommandContext,
) -> Result<()> {
    let read = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_json();
    let accepted: Invocation = read.map_err(|error| {
        Problem::new(format!("{} was not accepted: the answer is {}", args.name, answer.status()))
            .because(error)
            .exit(Exit::Refused)
            .hint("the node may be older than this program; `weir status` shows its version")
    })?;
    let id = accepted.id;
    if !args.later.wait {
        context.output.result(&accepted, |accepted| accepted.id.to_string())?;
        context
            .output
            .note(format_args!("`weir invocations result {id}` gives the answer once it has ended"));
        return Ok(());
    }
    context.output.note(format_args!("accepted as {id}; the invocation continues if this command ends"));
    invocations::ended(client, id)?;
    invocations::result(client, id, args.include, context)
}
