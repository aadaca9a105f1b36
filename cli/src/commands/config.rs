//! `weir config`.

use crate::commands::Context;
use anyhow::Result;
use serde::Serialize;
use std::path::Path;
use weir_host::NodeConfig;
use weir_types::FunctionManifest;

/// Show the configuration that counts here
///
/// weir.toml has three parts, each of them optional, and paths in it start from its folder:
///
///   [node]      how `weir up` sets up its node: the keys shown here
///   [client]    which node the other commands talk to: url, token_file
///   [function]  this folder's function: name, build, component, snapshot, snapshot_init,
///               models, env, outbound_hosts, idempotent, limits
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ConfigArgs {}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    node: &'a NodeConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionManifest>,
}

pub(crate) fn run(_args: &ConfigArgs, context: &Context) -> Result<()> {
    let defaults = NodeConfig::default();
    let file = context.file.as_ref();
    let shown = Shown {
        file: file.map(|file| file.path.as_path()),
        url: file.and_then(|file| file.client.url.as_deref()),
        node: file.map_or(&defaults, |file| &file.node),
        function: file
            .and_then(|file| file.function.as_ref())
            .map(crate::settings::FunctionProject::manifest),
    };
    let text = toml::to_string(&shown)?;
    context.output.result(&shown, |_| text)
}
