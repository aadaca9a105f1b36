//! `weir cluster ca`.

mod store;

use crate::commands::CommandContext;
use crate::error::Problem;
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use std::path::PathBuf;
use store::Store;
use weir_types::Name;

/// Issue certificates by which the nodes of a cluster authenticate each other
///
/// Keep the folder of the authority away from nodes: the holder of ca-key.pem can add nodes. Give
/// each node ca.pem, crl.pem, and its own certificate and key.
///
/// Examples:
///   weir cluster ca create
///   weir cluster ca issue node-7 --host node-7.example --host 10.0.0.7
///   weir cluster ca revoke node-7              # then give all nodes the new crl.pem
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CaArgs {
    /// Folder of the authority
    #[arg(long, value_name = "FOLDER", default_value = "weir-ca", global = true)]
    folder: PathBuf,
    #[command(subcommand)]
    action: CaAction,
}

#[derive(Debug, Subcommand)]
enum CaAction {
    /// Create an authority: ca.pem, ca-key.pem, and an empty revocation list, crl.pem
    Create,
    /// Issue a certificate: nodes/NAME/cert.pem and nodes/NAME/key.pem
    ///
    /// The certificate of a name replaces the earlier one, which is revoked.
    Issue(IssueArgs),
    /// Revoke the certificate of a node: adds it to crl.pem
    ///
    /// Nodes refuse a revoked node as soon as they have the new crl.pem, also on open connections.
    /// Revoke its access to etcd and to the blob store too.
    Revoke {
        /// Name of the node
        name: Name,
    },
}

#[derive(Debug, clap::Args)]
struct IssueArgs {
    /// Name of the node, and of the folder of its files
    name: Name,
    /// Host name or IP address at which other nodes reach the node; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    host: Vec<String>,
    /// Days until the certificate expires
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// Files that a command has written.
#[derive(Debug, Serialize)]
struct CaFiles {
    files: Vec<PathBuf>,
    /// Serial number of the revoked certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<String>,
}

pub(super) fn run(args: &CaArgs, context: &CommandContext) -> Result<()> {
    let store = Store::new(&args.folder);
    let written = match &args.action {
        CaAction::Create => CaFiles { files: store.create()?, revoked: None },
        CaAction::Issue(IssueArgs { name, host, days }) => {
            let (files, revoked) = store.issue(name, host, *days)?;
            CaFiles { files, revoked }
        }
        CaAction::Revoke { name } => {
            let revoked = store.revoke(name)?.ok_or_else(|| {
                let message = format!("{} has no certificate of `{name}`", args.folder.display());
                Problem::usage(message).hint("`weir cluster ca issue NAME --host HOST` issues one")
            })?;
            CaFiles { files: vec![store.crl()], revoked: Some(revoked) }
        }
    };
    context.output.result(&written, |written| {
        let files = written.files.iter().map(|file| format!("wrote {}", file.display()));
        let revoked =
            written.revoked.iter().map(|serial| format!("revoked {serial}: give all nodes the new crl.pem"));
        files.chain(revoked).collect::<Vec<_>>().join("\n")
    })
}
