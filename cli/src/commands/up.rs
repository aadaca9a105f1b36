//! `weir up`.

pub(crate) mod logging;

use crate::client::Client;
use crate::commands::CommandContext;
use crate::commands::cluster::NodeRenewal;
use crate::commands::deploy::GrantArgs;
use crate::commands::watch::{Deployer, Watcher};
use crate::error::Problem;
use crate::output::OutputSettings;
use crate::project::BuildStop;
use crate::repository::{RepositoryAddress, RepositorySync, RepositoryWatch};
use crate::settings::{NodeArgs, NodeEndpoint, Trust, first_token};
use anyhow::Result;
use logging::LogArgs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_host::{DevicesConfig, Node, NodeConfig};

/// Longest time that the shutdown of a node waits for its last build or upload.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// Exit code of shells after an interrupt.
const INTERRUPTED: i32 = 130;

/// Run a node, and in a project folder deploy its function
///
/// Prints `weir listening on http://ADDR` when the node is ready. Ctrl-C or SIGTERM stops accepting
/// requests, finishes the running ones and exits; a second signal exits immediately. With
/// --tls-cert and --tls-key, the node speaks TLS, and reads both files again when they change and on
/// SIGHUP.
///
/// Settings come from flags, the environment and [node] of weir.toml; `weir config` shows all of
/// them. Beyond loopback, clients must send a token (--token-file), unless --insecure is given.
///
/// Examples:
///   weir up
///   weir up --watch            # in a project: rebuild and redeploy on every change
///   weir up --model-repository models      # serve the models of a folder, or of s3://BUCKET/PREFIX
///   weir up --listen 0.0.0.0:9347 --token-file tokens --data /var/lib/weir
///   weir up --listen 0.0.0.0:9347 --token-file tokens --tls-cert cert.pem --tls-key key.pem
///   weir up --set gateway.drain_timeout_ms=1000 --set sandbox.limit_caps.memory_bytes=2147483648
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// In a project: rebuild and redeploy on every file change
    #[arg(long)]
    watch: bool,
    /// In a project: run the node without deploying the function
    #[arg(long, conflicts_with = "watch")]
    no_deploy: bool,
    /// Serve the models of a folder, or of s3://BUCKET/PREFIX, in Triton's layout
    /// (NAME/1/model.onnx), and push new ones and new versions while the node runs
    #[arg(long, value_name = "FOLDER")]
    model_repository: Option<RepositoryAddress>,
    #[command(flatten)]
    init: InitArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// Options for a node whose registry or blobs are lost.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct InitArgs {
    /// After a loss of data: start with an empty registry in a data folder that contains other
    /// files, or in a cluster with an empty folder of blobs. A node outside a cluster refuses this
    /// if its registry exists
    #[arg(long)]
    init: bool,
}

pub(crate) fn run(args: &UpArgs, context: &CommandContext) -> Result<()> {
    let config = args.node.config(context.file.as_ref())?;
    let project = match &context.file {
        Some(file) if file.function.is_some() && !args.no_deploy => Some(file.path.clone()),
        // Returns the error about the missing project.
        _ if args.watch => context.project().map(|_| None)?,
        _ => None,
    };
    if let Some(repository) = &args.model_repository {
        repository.check("--model-repository")?;
    }
    let work = NodeWork { project, watch: args.watch, repository: args.model_repository.clone() };
    run_node(config, args.init, &args.log, work, context.output)
}

/// Deployments that a node makes to itself.
#[derive(Default)]
struct NodeWork {
    /// Project whose function the node deploys.
    project: Option<PathBuf>,
    /// Whether the node deploys it again after every change.
    watch: bool,
    /// Repository whose models the node serves.
    repository: Option<RepositoryAddress>,
}

impl NodeWork {
    /// Starts the threads of the work, which end when they are dropped. `client` is made for each.
    fn start(
        self,
        data: &Path,
        client: impl Fn() -> Result<Client>,
        output: OutputSettings,
    ) -> Result<(Option<Watcher>, Option<RepositoryWatch>)> {
        let repository = match self.repository {
            None => None,
            Some(address) => {
                let data = Some(data.to_owned());
                let sync = RepositorySync::new(address, data, client()?, output, false)?;
                Some(RepositoryWatch::start(sync)?)
            }
        };
        let Some(file) = self.project else { return Ok((None, repository)) };
        let deployer = Deployer {
            file,
            name: None,
            grants: GrantArgs::default(),
            strict: false,
            client: client()?,
            output,
            follower: None,
        };
        let watcher = Watcher::start(deployer, self.watch.then_some(data), BuildStop::default())?;
        Ok((Some(watcher), repository))
    }
}

/// Runs a node without deploying a function.
pub(crate) fn start(
    config: NodeConfig,
    init: InitArgs,
    log: &LogArgs,
    context: &CommandContext,
) -> Result<()> {
    run_node(config, init, log, NodeWork::default(), context.output)
}

fn run_node(
    config: NodeConfig,
    init: InitArgs,
    log: &LogArgs,
    work: NodeWork,
    output: OutputSettings,
) -> Result<()> {
    logging::start(log, logging::FILTER_DEFAULT)?;
    block_on(serve(config, init, work, output))
}

/// Runs a command that waits for signals in a separate runtime, because the node has its own
/// runtimes.
pub(crate) fn block_on(command: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

async fn serve(config: NodeConfig, init: InitArgs, work: NodeWork, output: OutputSettings) -> Result<()> {
    // Handle signals from here on, also during the node's start.
    let mut signals = Signals::new()?;
    let token_file = config.token_file.clone();
    let data = config.data.clone();
    let mut renewal = match &config.cluster {
        Some(cluster) => NodeRenewal::from_config(&cluster.tls)?,
        None => None,
    };
    let Some(mut node) = start_node(config, init, &mut signals, output).await? else { return Ok(()) };
    let url = client_url(&node);
    let client = || {
        let token = token_file.as_deref().map(first_token).transpose()?;
        Client::new(NodeEndpoint { url: url.clone(), token, trust: Trust::OwnProcess })
    };
    let work = work.start(&data, client, output)?;
    while until_end(&node, &mut signals, renewal.as_mut()).await? == NodeEnd::Outdated {
        output.note("the data of etcd was replaced: the node joins its cluster anew");
        node = tokio::select! {
            restarted = node.restart() => restarted.map_err(|error| {
                Problem::new("the node did not start again after the data of etcd was replaced").because(error)
            })?,
            () = signals.next() => return Ok(()),
        };
    }
    finish(node, work, &mut signals, output).await;
    Ok(())
}

/// Starts a node and prints its address. `None` after a signal.
pub(crate) async fn start_node(
    config: NodeConfig,
    init: InitArgs,
    signals: &mut Signals,
    output: OutputSettings,
) -> Result<Option<Node>> {
    let is_activator = config.devices == DevicesConfig::None;
    let start = async {
        if init.init {
            Node::init(&config).await?;
        }
        Node::start(config).await
    };
    let node = tokio::select! {
        node = start => node.map_err(|error| Problem::new("the node did not start").because(error).hint(
            "`weir doctor` checks what a node needs; --listen and --data choose another address and folder",
        ))?,
        () = signals.next() => return Ok(None),
    };
    let url = format!("{}://{}", scheme(&node), node.local_addr());
    if is_activator {
        output.note("this node has no devices: it accepts calls, and other nodes of its cluster run them");
    }
    if output.json {
        output.line(&serde_json::json!({ "listening": url }))?;
    } else {
        output.line(&format_args!("weir listening on {url}"))?;
    }
    Ok(Some(node))
}

/// Stops `work`, whose threads end when it is dropped, and the node, which finishes its running
/// requests. Exits on a further signal.
pub(crate) async fn finish(
    node: Node,
    work: impl Send + 'static,
    signals: &mut Signals,
    output: OutputSettings,
) {
    output.note("finishing the active requests; Ctrl-C again ends at once");
    let drain = async {
        // Stop builds first, so that nothing is deployed during the shutdown.
        // The last build or upload may take a moment to end; signals must be handled meanwhile.
        let ended = tokio::task::spawn_blocking(move || drop(work));
        let _ = tokio::time::timeout(STOP_WAIT, ended).await;
        node.shutdown().await;
    };
    let give_up = async {
        signals.next().await;
        // Exit here: code after the `select!` runs only after the node is dropped, which takes
        // time.
        std::process::exit(INTERRUPTED)
    };
    tokio::select! {
        () = drain => {}
        () = give_up => {}
    }
}

/// The reason why a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeEnd {
    /// A signal.
    Signal,
    /// Other data has replaced the data of its cluster's datastore.
    Outdated,
}

/// Waits for the end of the node. On SIGHUP, a node with TLS reads its certificates again. Also
/// renews the node's certificate files when they are due.
async fn until_end(node: &Node, signals: &mut Signals, renewal: Option<&mut NodeRenewal>) -> Result<NodeEnd> {
    let mut renewal = pin!(async {
        match renewal {
            Some(renewal) => renewal.run().await,
            None => std::future::pending().await,
        }
    });
    // Without files to read again, SIGHUP ends the process as usual, such as when a terminal closes.
    let mut hangup = node.has_files_to_reload().then(|| signal(SignalKind::hangup())).transpose()?;
    loop {
        let reload = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = signals.next() => return Ok(NodeEnd::Signal),
            () = node.until_outdated() => return Ok(NodeEnd::Outdated),
            // The node notices new files without a restart.
            never = &mut renewal => match never {},
            Some(()) = reload => node.reload().await,
        }
    }
}

fn scheme(node: &Node) -> &'static str {
    if node.has_tls() { "https" } else { "http" }
}

/// URL of `node` for clients on this machine. A wildcard address is replaced by loopback.
pub(crate) fn client_url(node: &Node) -> String {
    format!("{}://{}", scheme(node), reachable(node.local_addr()))
}

fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Signals that end a node.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_listen_address_is_reached_over_loopback() {
        let reached = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reached("[::]:80"), "[::1]:80");
        assert_eq!(reached("10.1.2.3:80"), "10.1.2.3:80");
    }
}
