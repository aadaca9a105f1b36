//! `weir node`.

use crate::commands::Context;
use crate::commands::up::{self, LogArgs};
use crate::error::Problem;
use crate::settings::NodeArgs;
use anyhow::Result;

/// Run a node that is one of a cluster
///
/// The same as `weir up`, but never by itself: what is deployed is in the cluster's etcd, components
/// and models are in its store of blobs, and calls run on whichever node finishes them first. Any
/// node takes calls and deploys. Ctrl-C or SIGTERM leaves the cluster in good order.
///
/// Nodes on several machines show each other a secret (--secret-file), and say where they are
/// reached (--advertise) if that is not where they listen. `weir cluster up` runs a cluster on this
/// machine.
///
/// Examples:
///   weir node --datastore etcd://etcd-0,etcd-1,etcd-2 --blobs s3://weir --secret-file secret \
///             --listen 0.0.0.0:9347 --advertise node-7:9347 --token-file tokens
///   weir node --datastore etcd://localhost/mine --blobs file:///srv/weir
///   weir status                                # who is in the cluster, and who decides
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct NodeCommandArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: &NodeCommandArgs, context: &Context) -> Result<()> {
    let config = args.node.config(context.file.as_ref())?;
    if config.cluster.is_none() {
        return Err(Problem::usage("a node of a cluster needs to know where the cluster is")
            .hint("give --datastore and --blobs, or [node.cluster] in weir.toml; `weir up` runs a node by itself")
            .into());
    }
    up::start(config, &args.log, context)
}
