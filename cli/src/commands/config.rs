//! `weir config`.

use crate::commands::Context;
use crate::settings::{ClientArgs, FunctionProject, NodeArgs};
use anyhow::Result;
use serde::Serialize;
use std::path::Path;
use weir_host::NodeConfig;
use weir_types::FunctionManifest;

/// Show the configuration that counts here
///
/// That is what `weir up` and the other commands would go by: flags, over the environment, over
/// weir.toml, over defaults.
///
/// weir.toml has three parts, each of them optional, and paths in it start from its folder:
///
///   [node]      how `weir up` sets up its node: the keys shown here
///   [client]    which node the other commands talk to: url, token_from
///   [function]  this folder's function: name, build, component, snapshot, snapshot_init,
///               models, env, outbound_hosts, idempotent, slo_ms, cost_slo, reuse, limits
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
    url: String,
    node: NodeConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionManifest>,
}

pub(crate) fn run(args: &ConfigArgs, context: &Context) -> Result<()> {
    let file = context.file.as_ref();
    let shown = Shown {
        file: file.map(|file| file.path.as_path()),
        url: args.client.url(file)?,
        node: args.node.config(file)?,
        function: file.and_then(|file| file.function.as_ref()).map(FunctionProject::manifest),
    };
    let text = toml::to_string(&shown)?;
    context.output.result(&shown, |_| text)
}
