//! `weir config`.

use crate::commands::Context;
use crate::settings::{ClientArgs, FunctionProject, NodeArgs};
use anyhow::Result;
use serde::Serialize;
use weir_host::NodeConfig;

/// Show the configuration that counts here
///
/// That is what `weir up` and the other commands would go by: flags, over the environment, over
/// weir.toml, over defaults.
///
/// weir.toml has three parts, each of them optional, and paths in it start from its folder:
///
///   [node]      how `weir up` sets up its node: the keys shown here
///   [client]    which node the other commands talk to: url, token_from
///   [function]  this folder's function: name, build, component, world, snapshot, snapshot_init,
///               models, objects, env, outbound_hosts, idempotent, cache_ttl_ms, slo_ms,
///               cost_slo, reuse, limits
///
/// What is shown is a weir.toml itself. docs/configuration.md says what each key means.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// A `weir.toml` that says what counts.
#[derive(Serialize)]
struct Shown<'a> {
    client: Node,
    node: NodeConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a FunctionProject>,
}

/// Which node commands talk to.
#[derive(Serialize)]
struct Node {
    url: String,
}

pub(crate) fn run(args: &ConfigArgs, context: &Context) -> Result<()> {
    let file = context.file.as_ref();
    let shown = Shown {
        client: Node { url: args.client.url(file)? },
        node: args.node.config(file)?,
        function: file.and_then(|file| file.function.as_ref()),
    };
    let text = toml::to_string(&shown)?;
    context.output.result(&shown, |_| match file {
        Some(file) => format!("# By {} and what goes before it.\n\n{text}", file.path.display()),
        None => text,
    })
}
