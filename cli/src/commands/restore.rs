//! `weir restore`.

use crate::commands::CommandContext;
use crate::commands::backup::{Reported, details};
use crate::commands::up::block_on;
use crate::error::Problem;
use crate::output::size;
use crate::settings::NodeArgs;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::path::PathBuf;
use weir_host::Node;

/// Restore a backup into an empty data folder or cluster
///
/// Takes the settings of the node that starts next: `weir up --data FOLDER` serves what `weir restore
/// FILE --data FOLDER` has restored. With --datastore and --blobs, the backup is restored into the
/// cluster: stop all nodes first, restore on one machine, and start the nodes.
///
/// The data folder, or the prefix of etcd, must be empty. The records are written only after all of
/// FILE is checked. A backup of a single node can be restored into a cluster, and the other way.
///
/// Examples:
///   weir restore weir.tar --data new-data
///   weir restore weir.tar --datastore etcd://10.0.0.1/weir --blobs s3://bucket/weir
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct RestoreArgs {
    /// Backup, as `weir backup` made it
    file: PathBuf,
    #[command(flatten)]
    node: NodeArgs,
}

pub(crate) fn run(args: &RestoreArgs, context: &CommandContext) -> Result<()> {
    let config = args.node.config(context.file.as_ref())?;
    let path = &args.file;
    let unreadable = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(unreadable)?;
    let bytes = file.metadata().with_context(unreadable)?.len();
    let place = match &config.cluster {
        None => config.data.display().to_string(),
        Some(cluster) => cluster.datastore.clone(),
    };
    let progress = context.output.bytes_bar("restoring the backup", bytes);
    let shown = progress.clone();
    block_on(async {
        let restored = Node::restore(&config, file, move |read| shown.set_position(read)).await;
        progress.finish_and_clear();
        let summary = restored
            .map_err(|error| Problem::new(format!("{} was not restored", path.display())).because(error))?;
        context.output.result(&Reported { file: path, bytes, summary: &summary }, |reported| {
            format!("restored {} into {place}\n{}", size(reported.bytes), details(reported.summary))
        })
    })
}
