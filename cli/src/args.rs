//! Global arguments and the list of subcommands. Each subcommand's arguments are in its own module.

use crate::commands;
use crate::error;
use clap::builder::{FalseyValueParser, Resettable, TypedValueParser as _};
use clap::{Command as ClapCommand, CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

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
  1  something here failed: a file that cannot be read or exists already, a build, a check; or weir
     diff found differences
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
    #[arg(long, global = true, env = "WEIR_JSON", value_parser = FalseyValueParser::new())]
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

/// Prints the help or an error of arguments that cannot be used, and returns the exit code.
pub(crate) fn refuse(error: clap::Error) -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    let error = without_environment(error, &given);
    if error.use_stderr() && wants_json(&given) {
        return error::report(&usage_problem(&error).into(), true);
    }
    // A closed output leaves no way to report.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(error::Exit::Usage as u8))
}

/// The same error without arguments from the environment, which clap would show in the usage.
fn without_environment(error: clap::Error, given: &[OsString]) -> clap::Error {
    fn clear(command: ClapCommand) -> ClapCommand {
        command.mut_args(|arg| arg.env(Resettable::<clap::builder::OsStr>::Reset)).mut_subcommands(clear)
    }
    match clear(Args::command()).try_get_matches_from(given) {
        Err(plain) if plain.kind() == error.kind() => plain,
        _ => error,
    }
}

/// Whether `--json` or its variable is set, although the arguments cannot be parsed.
fn wants_json(given: &[OsString]) -> bool {
    let options = given.iter().take_while(|arg| *arg != "--");
    let is_set =
        |value: OsString| FalseyValueParser::new().parse_ref(&Args::command(), None, &value).unwrap_or(false);
    options.into_iter().any(|arg| arg == "--json") || std::env::var_os("WEIR_JSON").is_some_and(is_set)
}

/// The parts of an error of clap: the message first, then tips, the usage and a pointer to the help.
fn usage_problem(error: &clap::Error) -> error::Problem {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error:").unwrap_or(message);
    let words: Vec<&str> = message.split_whitespace().collect();
    let problem = error::Problem::usage(words.join(" "));
    match paragraphs.find_map(|paragraph| paragraph.strip_prefix("tip:")) {
        Some(tip) => problem.hint(tip.trim()),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> (clap::Error, Vec<OsString>) {
        let given: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        (Args::try_parse_from(&given).unwrap_err(), given)
    }

    #[test]
    fn argument_errors_have_one_line_and_the_tip() {
        let parsed = parse("weir export --json --tot x");
        assert!(wants_json(&parsed.1));
        let problem = usage_problem(&parsed.0);
        assert!(problem.to_string().starts_with("unexpected argument '--tot' found"), "{problem}");
        assert!(problem.advice().unwrap().contains("'--to'"), "{problem:?}");
        let missing = usage_problem(&parse("weir models run lin").0).to_string();
        assert_eq!(missing, "the following required arguments were not provided: --data <DATA>");
        assert!(!wants_json(&parse("weir models run -- --json").1));
    }
}
