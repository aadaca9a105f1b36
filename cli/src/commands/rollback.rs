//! `weir rollback`.

use crate::commands::CommandContext;
use crate::settings::ClientArgs;
use anyhow::Result;
use weir_types::api::{Function, VersionRequest};
use weir_types::{Name, Version};

/// Activate an earlier version of a function, or any other version
///
/// Running invocations finish on the version they started with. If the function has a canary, or else
/// a shadow, the rollback ends it and keeps the active version.
///
/// Examples:
///   weir rollback hello      # to the version before the active one
///   weir rollback hello 4
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct RollbackArgs {
    /// Name of the function
    name: Name,
    /// Version to activate [default: the version that was active before; with a canary or shadow, the
    /// active one]
    version: Option<u32>,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &RollbackArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let body = VersionRequest { version: args.version.map(Version) };
    let path = format!("/v1/functions/{}/rollback", args.name);
    let now: Function = client.post(&path, &format!("roll back {}", args.name), &body)?;
    context.output.result(&now, |now| format!("{} is at version {} now", now.active.name, now.active.version))
}
