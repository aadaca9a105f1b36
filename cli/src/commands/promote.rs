//! `weir promote`.

use crate::commands::CommandContext;
use crate::settings::ClientArgs;
use anyhow::Result;
use serde_json::json;
use weir_types::Name;
use weir_types::api::Function;

/// Make the canary of a function its active version
///
/// `weir deploy --canary` starts a canary, and `weir rollback` ends it.
///
/// Examples:
///   weir promote hello
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct PromoteArgs {
    /// Name of the function
    name: Name,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &PromoteArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let path = format!("/v1/functions/{}/promote", args.name);
    let now: Function = client.post(&path, &format!("promote the canary of {}", args.name), &json!({}))?;
    context.output.result(&now, |now| format!("{} is at version {} now", now.active.name, now.active.version))
}
