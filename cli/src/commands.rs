//! Subcommands: one module each, with its arguments and its implementation.

mod alias;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod build;
mod canary;
pub(crate) mod child;
pub(crate) mod cluster;
mod collection;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod deploy;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod functions;
pub(crate) mod invocations;
pub(crate) mod invoke;
pub(crate) mod kernel_graphs;
pub(crate) mod keys;
pub(crate) mod logs;
pub(crate) mod models;
pub(crate) mod new;
pub(crate) mod node;
pub(crate) mod objects;
mod plot;
pub(crate) mod promote;
pub(crate) mod replay;
pub(crate) mod restore;
pub(crate) mod rollback;
pub(crate) mod secrets;
mod shadow;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod triggers;
pub(crate) mod up;
pub(crate) mod usage;
pub(crate) mod watch;
pub(crate) mod why;
pub(crate) mod workflows;
mod workload;

use crate::args::{Args, Command};
use crate::client::Client;
use crate::error::Problem;
use crate::output::OutputSettings;
use crate::project::Project;
use crate::settings::{ClientArgs, ConfigFile};
use anyhow::Result;

/// Context of a subcommand.
pub(crate) struct CommandContext {
    /// Destination of results.
    pub(crate) output: OutputSettings,
    /// The `weir.toml` in effect.
    pub(crate) file: Option<ConfigFile>,
}

impl CommandContext {
    /// Creates a client for the node selected by the arguments and `weir.toml`.
    pub(crate) fn client(&self, args: &ClientArgs) -> Result<Client> {
        Client::new(args.endpoint(self.file.as_ref())?)
    }

    /// The function project that contains the current folder.
    pub(crate) fn project(&self) -> Result<Project> {
        let project = self.file.as_ref().and_then(Project::from_config);
        project.ok_or_else(|| {
            let message = match &self.file {
                Some(file) => format!("{} has no [function]", file.path.display()),
                None => "no weir.toml in this folder or above it".into(),
            };
            Problem::usage(message)
                .hint("`weir new NAME` makes a function's project; run this in its folder")
                .into()
        })
    }
}

/// Runs the subcommand in `args`.
pub(crate) fn run(args: Args) -> Result<()> {
    let output = OutputSettings { json: args.global.json, quiet: args.global.quiet };
    if let Command::Completions(args) = &args.command {
        // Shells run this at startup, so it must work with a broken weir.toml.
        return completions::run(args, output);
    }
    let file = ConfigFile::find(args.global.config.as_deref(), &std::env::current_dir()?)?;
    let context = CommandContext { output, file };
    match args.command {
        Command::New(args) => new::run(&args, &context),
        Command::Build(args) => build::run(&args, &context),
        Command::Up(args) => up::run(&args, &context),
        Command::Node(args) => node::run(&args, &context),
        Command::Cluster(args) => cluster::run(&args, &context),
        Command::Demo(args) => demo::run(&args, &context),
        Command::Deploy(args) => deploy::run(&args, &context),
        Command::Apply(args) => apply::run(&args, &context),
        Command::Diff(args) => diff::run(&args, &context),
        Command::Export(args) => export::run(&args, &context),
        Command::Invoke(args) => invoke::run(&args, &context),
        Command::Invocations(args) => invocations::run(args, &context),
        Command::Functions(args) => functions::run(args, &context),
        Command::Promote(args) => promote::run(&args, &context),
        Command::Rollback(args) => rollback::run(&args, &context),
        Command::Models(args) => models::run(args, &context),
        Command::KernelGraphs(args) => kernel_graphs::run(args, &context),
        Command::Keys(args) => keys::run(args, &context),
        Command::Secrets(args) => secrets::run(args, &context),
        Command::Objects(args) => objects::run(args, &context),
        Command::Workflows(args) => workflows::run(args, &context),
        Command::Logs(args) => logs::run(&args, &context),
        Command::Events(args) => events::run(&args, &context),
        Command::Backup(args) => backup::run(&args, &context),
        Command::Restore(args) => restore::run(&args, &context),
        Command::Status(args) => status::run(&args, &context),
        Command::Top(args) => top::run(&args, &context),
        Command::Trace(args) => trace::run(&args, &context),
        Command::Triggers(args) => triggers::run(args, &context),
        Command::Usage(args) => usage::run(&args, &context),
        Command::Why(args) => why::run(&args, &context),
        Command::Simulate(args) => simulate::run(&args, &context),
        Command::Replay(args) => replay::run(&args, &context),
        Command::Doctor(args) => doctor::run(&args, &context),
        Command::Config(args) => config::run(&args, &context),
        Command::Completions(args) => completions::run(&args, output),
    }
}
