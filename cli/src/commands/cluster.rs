//! `weir cluster`.

mod ca;
mod enrolment;
mod join;
mod process;
mod renew;

use crate::commands::CommandContext;
use crate::commands::up::block_on;
use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use clap::Subcommand;
use process::{EtcdProcess, NodeProcess};
pub(crate) use renew::NodeRenewal;
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use weir_types::api::DEFAULT_PORT;

/// Run a cluster on this machine, and issue certificates to the nodes of any cluster
///
/// Examples:
///   weir cluster up                            # three nodes
///   weir cluster up --nodes 5 --data /tmp/five
///   weir status                                # status of the first node, in another terminal
///   weir cluster ca create && weir cluster ca issue node-7 --host node-7
///   weir cluster join ca.example node-7 --host node-7 --token-file token
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    action: ClusterAction,
}

#[derive(Debug, Subcommand)]
enum ClusterAction {
    /// Run nodes that share an etcd and a blob folder, until Ctrl-C
    ///
    /// Each node is a separate process. Kill one to test how the others handle the failure.
    /// Deployments stay in the data folder for the next start.
    Up(ClusterUpArgs),
    Join(join::JoinArgs),
    Renew(renew::RenewArgs),
    Ca(ca::CaArgs),
}

#[derive(Debug, clap::Args)]
struct ClusterUpArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Port of the first node; the other nodes use the following ports. 0 selects free ports
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Folder for the nodes' data and logs, the blobs, and etcd's data
    #[arg(long, value_name = "FOLDER", default_value = "weir-cluster")]
    data: PathBuf,
    /// URL of a running etcd [default: starts the etcd in the PATH]
    #[arg(long, value_name = "URL", env = "WEIR_DATASTORE")]
    datastore: Option<String>,
    /// Setting of [node] for all nodes; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(args: &ClusterArgs, context: &CommandContext) -> Result<()> {
    match &args.action {
        ClusterAction::Up(args) => block_on(up(args, context.output)),
        ClusterAction::Join(args) => block_on(join::join(args, context)),
        ClusterAction::Renew(args) => block_on(renew::renew(args, context)),
        ClusterAction::Ca(args) => ca::run(args, context),
    }
}

/// Addresses of a running cluster.
#[derive(Serialize)]
struct Running {
    datastore: String,
    nodes: Vec<String>,
}

async fn up(args: &ClusterUpArgs, output: OutputSettings) -> Result<()> {
    // Handle signals from here on. The nodes have their own process groups and do not receive
    // Ctrl-C.
    let mut signals = super::up::Signals::new()?;
    let data = std::path::absolute(&args.data)?;
    std::fs::create_dir_all(data.join("blobs"))
        .map_err(|error| Problem::new(format!("cannot make {}", data.display())).because(error))?;
    let mut etcd = None;
    let datastore = match &args.datastore {
        Some(datastore) => datastore.clone(),
        None => {
            let started = tokio::select! {
                started = EtcdProcess::start(data.join("etcd"), data.join("etcd.log")) => started?,
                () = signals.next() => return Ok(()),
            };
            etcd.insert(started).url()
        }
    };
    let mut members = Vec::new();
    for number in 1..=args.nodes {
        let port = if args.port == 0 { 0 } else { args.port.saturating_add(number - 1) };
        let arguments = arguments(args, &data, &datastore, port, number);
        tokio::select! {
            started = NodeProcess::start(number, &arguments, &data) => members.push(started?),
            () = signals.next() => break,
        }
        if let Some(member) = members.last() {
            output.note(format_args!("node {number} at {}, its log in {}", member.url, member.log.display()));
        }
    }
    if members.len() == usize::from(args.nodes) {
        let nodes = members.iter().map(|member| member.url.clone()).collect();
        let running = Running { datastore, nodes };
        output.result(&running, |running| {
            format!("weir cluster of {} nodes at {}", running.nodes.len(), running.nodes.join(", "))
        })?;
        wait(&mut members, &mut signals, output).await;
    }
    output.note("ending the nodes; Ctrl-C again ends them at once");
    let drain = async {
        // Stop all nodes at once: each node waits for the other nodes' calls.
        futures::future::join_all(members.iter_mut().map(NodeProcess::stop)).await;
    };
    tokio::select! {
        () = drain => {}
        () = signals.next() => {}
    }
    if let Some(etcd) = etcd {
        etcd.stop().await;
    }
    Ok(())
}

/// Waits for a signal, and prints a note for each node that exits before.
async fn wait(members: &mut [NodeProcess], signals: &mut super::up::Signals, output: OutputSettings) {
    let mut ends: futures::stream::FuturesUnordered<_> = members.iter_mut().map(NodeProcess::ended).collect();
    loop {
        tokio::select! {
            Some(end) = futures::StreamExt::next(&mut ends) => output.note(end),
            () = signals.next() => return,
        }
    }
}

/// Command-line arguments of node `number`.
fn arguments(
    args: &ClusterUpArgs,
    data: &std::path::Path,
    datastore: &str,
    port: u16,
    number: u16,
) -> Vec<String> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut arguments = vec![
        "node".to_owned(),
        format!("--listen={listen}"),
        format!("--data={}", data.join(format!("node-{number}")).display()),
        format!("--datastore={datastore}"),
        format!("--blobs=file://{}", data.join("blobs").display()),
    ];
    arguments.extend(args.set.iter().map(|setting| format!("--set={setting}")));
    arguments
}
