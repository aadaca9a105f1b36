//! `weir invocations`.

use crate::client::{Client, refusal};
use crate::commands::CommandContext;
use crate::commands::invoke::show;
use crate::error::Problem;
use crate::output::{age, size, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use serde_json::json;
use ureq::SendBody;
use ureq::http::Method;
use weir_types::api::{ERROR_CODE_HEADER, Invocation, InvocationKind, InvocationPage, InvocationStatus};
use weir_types::{AsyncId, Name};

/// Duration of one long-poll request for an invocation's end. Requests follow each other until it
/// ends.
const WAIT_MS: u32 = 30_000;

/// List, show, cancel and retry asynchronous invocations, and fetch their results
///
/// `weir invoke --async` starts them. The node keeps their results for async.retention_ms.
///
/// Examples:
///   weir invocations                            # the newest invocations
///   weir invocations list --status dead
///   weir invocations show ID --wait             # wait for the end, then show the status
///   weir invocations result ID > answer.json
///   weir invocations retry ID                   # restart a dead invocation
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct InvocationsArgs {
    #[command(subcommand)]
    action: Option<InvocationAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum InvocationAction {
    /// List invocations, newest first (the default action)
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show an invocation's status and error
    Show {
        /// ID of the invocation
        id: AsyncId,
        /// Wait until the invocation ends
        #[arg(long)]
        wait: bool,
    },
    /// Print the response of an ended invocation
    Result {
        /// ID of the invocation
        id: AsyncId,
        /// Print the response's status and headers before its body
        #[arg(long, short)]
        include: bool,
    },
    /// Cancel a queued or running invocation
    Cancel {
        /// ID of the invocation
        id: AsyncId,
    },
    /// Restart a dead invocation
    Retry {
        /// ID of the invocation
        id: AsyncId,
    },
    /// Delete an ended invocation and its result
    #[command(visible_alias = "delete")]
    Rm {
        /// ID of the invocation
        id: AsyncId,
    },
}

#[derive(Debug, Default, clap::Args)]
struct ListArgs {
    /// Only invocations with this status: queued, running, done, dead or cancelled
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<InvocationStatus>,
    /// Only invocations of this function or model
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// Maximum number of invocations [default: 20]
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Continue after this invocation
    #[arg(long, value_name = "ID")]
    after: Option<AsyncId>,
}

pub(crate) fn run(args: InvocationsArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    match args.action.unwrap_or(InvocationAction::List(ListArgs::default())) {
        InvocationAction::List(args) => {
            let page: InvocationPage = client.get(&args.path(), "list the invocations")?;
            context.output.result(&page, list)
        }
        InvocationAction::Show { id, wait } => {
            let invocation =
                if wait { ended(&client, id)? } else { client.get(&path(id), &format!("show {id}"))? };
            context.output.result(&invocation, details)
        }
        InvocationAction::Result { id, include } => result(&client, id, include, context),
        InvocationAction::Cancel { id } => {
            let cancelled: Invocation =
                client.post(&format!("{}/cancel", path(id)), &format!("cancel {id}"), &json!({}))?;
            context.output.result(&cancelled, |_| format!("cancelled {id}"))
        }
        InvocationAction::Retry { id } => {
            let retried: Invocation =
                client.post(&format!("{}/retry", path(id)), &format!("retry {id}"), &json!({}))?;
            context.output.result(&retried, |_| {
                format!("restarted {id}; `weir invocations show {id} --wait` waits for its end")
            })
        }
        InvocationAction::Rm { id } => {
            let invocation: Invocation = client.get(&path(id), &format!("remove {id}"))?;
            if !invocation.status.is_end() {
                let problem = Problem::new(format!("{id} is {}", invocation.status));
                return Err(problem.hint(format!("`weir invocations cancel {id}` ends it")).into());
            }
            client.delete(&path(id), &format!("remove {id}"))?;
            context.output.result(&json!({ "removed": id }), |_| format!("removed {id}"))
        }
    }
}

/// Waits for the end of an invocation and returns it.
pub(crate) fn ended(client: &Client, id: AsyncId) -> Result<Invocation> {
    loop {
        let path = format!("{}?wait_ms={WAIT_MS}", path(id));
        let invocation: Invocation = client.get(&path, &format!("wait for {id}"))?;
        if invocation.status.is_end() {
            return Ok(invocation);
        }
    }
}

/// Prints the response of an invocation, or returns its error.
pub(crate) fn result(client: &Client, id: AsyncId, include: bool, context: &CommandContext) -> Result<()> {
    let request = client.request(Method::GET, &format!("{}/result", path(id)), SendBody::none())?;
    let answer = client.send(request)?;
    if answer.headers().contains_key(ERROR_CODE_HEADER) {
        return Err(refusal(answer, &format!("give the result of {id}")).into());
    }
    let hint = format!("`weir invocations show {id}` names the function; `weir logs` shows its log");
    show(answer, include, &format!("invocation {id}"), &hint, context.output)
}

fn path(id: AsyncId) -> String {
    format!("/v1/invocations/{id}")
}

impl ListArgs {
    fn path(&self) -> String {
        let Self { status, name, limit, after } = self;
        let mut path = format!("/v1/invocations?limit={}", limit.unwrap_or(20));
        let mut add = |key: &str, value: Option<String>| {
            value.into_iter().for_each(|value| path.push_str(&format!("&{key}={value}")));
        };
        add("status", status.map(|status| status.to_string()));
        add("name", name.as_ref().map(ToString::to_string));
        add("after", after.map(|after| after.to_string()));
        path
    }
}

fn status(text: &str) -> Result<InvocationStatus, String> {
    let found = InvocationStatus::ALL.into_iter().find(|status| status.as_str() == text);
    found.ok_or_else(|| format!("one of {}", InvocationStatus::ALL.map(InvocationStatus::as_str).join(", ")))
}

fn list(page: &InvocationPage) -> String {
    if page.invocations.is_empty() && page.next.is_none() {
        return "no asynchronous invocations; `weir invoke NAME --async` starts one".into();
    }
    let rows = page.invocations.iter().map(|invocation| {
        [
            invocation.id.to_string(),
            target(invocation),
            invocation.status.to_string(),
            invocation.attempts.to_string(),
            age(invocation.accepted_at_ms),
            invocation.error.as_ref().map_or_else(|| "-".into(), |error| error.code.to_string()),
        ]
    });
    let shown = table(["ID", "NAME", "STATUS", "ATTEMPTS", "ACCEPTED", "ERROR"], rows);
    match page.next {
        Some(next) => format!("{shown}\n\nthere are more: --after {next}"),
        None => shown,
    }
}

fn target(invocation: &Invocation) -> String {
    match invocation.version {
        Some(version) => format!("{}:{version}", invocation.name),
        None => invocation.name.to_string(),
    }
}

fn details(invocation: &Invocation) -> String {
    let at = |at_ms: u64| format!("{} ({})", time(at_ms), age(at_ms));
    let kind = match invocation.kind {
        InvocationKind::Function => "function",
        InvocationKind::Inference => "inference",
    };
    let mut facts = vec![
        ("id", invocation.id.to_string()),
        (kind, target(invocation)),
        ("status", invocation.status.to_string()),
        ("attempts", invocation.attempts.to_string()),
        ("request", format!("{}, {}", invocation.request_id, size(invocation.request_bytes))),
        ("accepted", at(invocation.accepted_at_ms)),
    ];
    for (name, at_ms) in [("started", invocation.started_at_ms), ("ended", invocation.ended_at_ms)] {
        facts.extend(at_ms.map(|at_ms| (name, at(at_ms))));
    }
    facts.extend(invocation.next_attempt_at_ms.map(|at_ms| ("next attempt", time(at_ms))));
    facts.extend(invocation.expires_at_ms.map(|at_ms| ("kept until", time(at_ms))));
    if let Some(error) = &invocation.error {
        facts.push(("error", format!("{}: {}", error.code, error.text)));
    }
    if let Some(response) = &invocation.response {
        facts.push(("answer", format!("{}, {}", response.status, size(response.bytes))));
    }
    if let Some(callback) = &invocation.callback {
        let status = serde_json::to_value(callback.status).unwrap_or_default();
        let error = callback.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        facts.push((
            "callback",
            format!("{}, {} tried{error}", status.as_str().unwrap_or("-"), callback.attempts),
        ));
    }
    facts.iter().map(|(name, value)| format!("{name:<14}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_arguments_become_query_parameters() {
        assert_eq!(ListArgs::default().path(), "/v1/invocations?limit=20");
        let args = ListArgs {
            status: Some(InvocationStatus::Dead),
            name: Some(Name::new("f").unwrap()),
            limit: Some(3),
            after: Some(AsyncId::new(0, 1)),
        };
        let after = AsyncId::new(0, 1);
        assert_eq!(args.path(), format!("/v1/invocations?limit=3&status=dead&name=f&after={after}"));
        assert_eq!(status("done"), Ok(InvocationStatus::Done));
        assert!(status("Done").is_err_and(|error| error.contains("queued")));
    }
}
