//! `weir promote`.

use crate::commands::CommandContext;
use crate::settings::ClientArgs;
use anyhow::Result;
use weir_types::api::{Function, VersionRequest};
use weir_types::{Name, Version};

/// Make the canary, the shadow or a preview of a function its active version
///
/// `weir deploy --canary` starts a canary, and `weir rollback` ends it. `weir deploy --shadow` makes a
/// version that gets copies of calls, and `weir deploy --preview` one that gets no calls. Without
/// VERSION, the canary is promoted.
///
/// Examples:
///   weir promote hello
///   weir promote hello 3
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct PromoteArgs {
    /// Name of the function
    name: Name,
    /// Version to promote [default: the canary]
    version: Option<u32>,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &PromoteArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let path = format!("/v1/functions/{}/promote", args.name);
    let request = VersionRequest { version: args.version.map(Version) };
    let doing = match args.version {
        Some(version) => format!("promote version {version} of {}", args.name),
        None => format!("promote the canary of {}", args.name),
    };
    let now: Function = client.post(&path, &doing, &request)?;
    context.output.result(&now, |now| format!("{} is at version {} now", now.active.name, now.active.version))
}
