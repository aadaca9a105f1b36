//! Global arguments and the list of subcommands. Each subcommand's arguments are in its own module.

use crate::commands;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Start here:
  weir demo                                   # a node with an example
  weir up                                     # a node on this machine, in one terminal
  weir new hello && cd hello && weir deploy   # a function, in another
  weir invoke hello

Settings come from flags, then the environment, then weir.toml in this folder or one above, then
defaults. An unknown key is an error.

Exit codes:
  0  done
  1  something here failed: a file, a build, a check; or weir diff found differences
  2  wrong arguments or configuration
  3  no node answers
  4  the node refused; the message has its code and the request's id
  5  the function answered with a status of 400 or more (weir invoke)
  130  interrupted";

/// Run machine-learning functions: WebAssembly components that share models
#[derive(Debug, Parser)]
#[command(name = "weir", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Arguments that every subcommand accepts.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct GlobalArgs {
    /// Print results and errors as JSON
    #[arg(long, global = true, env = "WEIR_JSON", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) json: bool,
    /// Print only results and errors, without progress or notes
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Configuration file [default: weir.toml in this folder or a parent]
    #[arg(long, global = true, value_name = "FILE", env = "WEIR_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    New(commands::new::NewArgs),
    Build(commands::build::BuildArgs),
    Up(Box<commands::up::UpArgs>),
    Node(Box<commands::node::NodeCommandArgs>),
    Cluster(commands::cluster::ClusterArgs),
    Demo(commands::demo::DemoArgs),
    Deploy(commands::deploy::DeployArgs),
    Apply(commands::apply::ApplyArgs),
    Diff(commands::diff::DiffArgs),
    Export(commands::export::ExportArgs),
    Invoke(commands::invoke::InvokeArgs),
    Invocations(commands::invocations::InvocationsArgs),
    #[command(visible_alias = "fn")]
    Functions(commands::functions::FunctionsArgs),
    Promote(commands::promote::PromoteArgs),
    Rollback(commands::rollback::RollbackArgs),
    Models(commands::models::ModelsArgs),
    KernelGraphs(commands::kernel_graphs::KernelGraphsArgs),
    Keys(commands::keys::KeysArgs),
    Secrets(commands::secrets::SecretsArgs),
    Objects(commands::objects::ObjectsArgs),
    Workflows(commands::workflows::WorkflowsArgs),
    Logs(commands::logs::LogsArgs),
    Events(commands::events::EventsArgs),
    Backup(commands::backup::BackupArgs),
    Restore(commands::restore::RestoreArgs),
    Status(commands::status::StatusArgs),
    Top(commands::top::TopArgs),
    Trace(commands::trace::TraceArgs),
    Triggers(commands::triggers::TriggersArgs),
    Usage(commands::usage::UsageArgs),
    Why(commands::why::WhyArgs),
    Simulate(Box<commands::simulate::SimulateArgs>),
    Replay(Box<commands::replay::ReplayArgs>),
    Doctor(commands::doctor::DoctorArgs),
    Config(commands::config::ConfigArgs),
    Completions(commands::completions::CompletionsArgs),
}
