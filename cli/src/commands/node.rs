//! `weir node`.

use crate::commands::CommandContext;
use crate::commands::up::logging::LogArgs;
use crate::commands::up::{self, InitArgs};
use crate::error::Problem;
use crate::settings::NodeArgs;
use anyhow::Result;

/// Run a node of a cluster
///
/// Like `weir up`, but as a member of a cluster. The cluster's etcd stores the deployments, its
/// blob store holds the components and models, and each call runs on the node with the earliest
/// expected completion. Every node accepts calls and deployments. Ctrl-C or SIGTERM leaves the
/// cluster gracefully.
///
/// Nodes on several machines authenticate each other by certificates ([node.cluster.tls]; see
/// `weir cluster ca`) or with a shared secret (--secret-file), and announce an address (--advertise)
/// if it differs from the listen address. `weir cluster up` runs a cluster on this machine.
///
/// Examples:
///   weir node --datastore etcd://etcd-0,etcd-1,etcd-2 --blobs s3://weir --secret-file secret \
///             --listen 0.0.0.0:9347 --advertise node-7:9347 --token-file tokens
///   weir node --datastore etcd://localhost/mine --blobs file:///srv/weir
///   weir status                                # members of the cluster, and its leader
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct NodeCommandArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    init: InitArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: &NodeCommandArgs, context: &CommandContext) -> Result<()> {
    let config = args.node.config(context.file.as_ref())?;
    if config.cluster.is_none() {
        return Err(Problem::usage("a node of a cluster needs to know where the cluster is")
            .hint(
                "give --datastore and --blobs, or [node.cluster] in weir.toml; `weir up` runs a single node",
            )
            .into());
    }
    up::start(config, args.init, &args.log, context)
}
