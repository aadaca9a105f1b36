//! `weir config`.

use crate::commands::CommandContext;
use crate::settings::{ClientArgs, FunctionProject, NodeArgs};
use anyhow::Result;
use serde::Serialize;
use weir_host::NodeConfig;

/// Show the effective configuration
///
/// Shows the settings that `weir up` and the other commands use here. Flags override the
/// environment, the environment overrides weir.toml, and weir.toml overrides the defaults.
///
/// weir.toml has three optional parts. Relative paths in it start at its folder:
///
///   [node]      settings of the node that `weir up` starts: the keys shown here
///   [client]    the node that the other commands connect to: url, token_from, ca_file
///   [function]  this folder's function: name, build, watch_build, component, world, snapshot,
///               snapshot_init, models, objects, env, secrets, outbound_hosts, idempotent, public,
///               cache_ttl_ms, slo_ms, cost_slo, reuse, limits
///
/// The output is a valid weir.toml. docs/reference/configuration.md describes each key.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Effective configuration in the format of `weir.toml`.
#[derive(Serialize)]
struct Shown<'a> {
    client: NodeSection,
    node: NodeConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a FunctionProject>,
}

/// Node that the commands connect to.
#[derive(Serialize)]
struct NodeSection {
    url: String,
}

pub(crate) fn run(args: &ConfigArgs, context: &CommandContext) -> Result<()> {
    let file = context.file.as_ref();
    let shown = Shown {
        client: NodeSection { url: args.client.url(file)? },
        node: args.node.config(file)?,
        function: file.and_then(|file| file.function.as_ref()),
    };
    let text = toml::to_string(&shown)?;
    context.output.result(&shown, |_| match file {
        Some(file) => format!("# By {} and what goes before it.\n\n{text}", file.path.display()),
        None => text,
    })
}
