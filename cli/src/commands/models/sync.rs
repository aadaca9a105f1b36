//! `weir models sync`.

use crate::commands::collection::Collection;
use crate::error::Problem;
use crate::repository::{RepositoryAddress, RepositorySync, RepositoryWatch, SyncReport};
use anyhow::Result;

/// Push the models of a folder or bucket in Triton's layout that the node does not have
///
/// The folder has a folder for each model: NAME/1/model.onnx, NAME/2/model.onnx and so on, with
/// NAME/config.pbtxt if the model has settings. By default, the highest version is pushed, with its
/// number. Versions of the node do not change, and nothing is removed. A model with an error does
/// not prevent the other models from being pushed, and the exit status is then 1.
///
/// FOLDER may also be s3://BUCKET/PREFIX, a prefix of a bucket. Set the endpoint and the credentials
/// in the environment (AWS_ENDPOINT, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and others).
///
/// `weir up --model-repository FOLDER` runs a node that serves such a folder.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct SyncArgs {
    /// Folder with the models, or s3://BUCKET/PREFIX
    folder: RepositoryAddress,
    /// Go on, and push after every change in the repository
    #[arg(long)]
    watch: bool,
    /// Push models even if they have other inputs or outputs than the active versions
    #[arg(long)]
    allow_signature_change: bool,
}

pub(super) fn run(args: &SyncArgs, models: Collection) -> Result<()> {
    let Collection { client, output, .. } = models;
    let SyncArgs { ref folder, watch, allow_signature_change } = *args;
    let mut sync = RepositorySync::new(folder.clone(), None, client, output, allow_signature_change)?;
    let report = sync.run()?;
    output.result(&report, SyncReport::text)?;
    if watch {
        return RepositoryWatch::start(sync)?.wait();
    }
    match report.failed() {
        0 => Ok(()),
        failed => Err(Problem::new(format!("{failed} of {} models failed", report.models.len())).into()),
    }
}
