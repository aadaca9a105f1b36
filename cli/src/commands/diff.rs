//! `weir diff`.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::declaration::{self, Current, Declared, Kind, Plan, PlanReport};
use crate::error::{Differences, Exit, Problem, exit_of};
use crate::settings::ClientArgs;
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Show the differences between a declaration and the node
///
/// A declaration is a file that lists functions, models, workflows and triggers; `weir apply` makes
/// the node equal to it. Nothing is changed, and no component or model is sent.
///
/// The exit status is 0 without differences, and 1 with differences. Errors have a status of 2 or
/// more.
///
/// Examples:
///   weir diff                                    # weir.yaml in this folder
///   weir diff -f deploy/production.yaml
///   weir diff -f deploy/ --prune functions       # also lists functions that no file lists
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    declaration: DeclarationArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// The declaration, and its scope.
#[derive(Debug, clap::Args)]
pub(super) struct DeclarationArgs {
    /// File with the declaration, or folder of such files (*.yaml, *.yml), or - for standard input;
    /// may be repeated [default: weir.yaml]
    #[arg(long = "file", short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Delete items of these kinds that the declaration does not list: functions, models, workflows,
    /// triggers
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    prune: Vec<Kind>,
}

pub(crate) fn run(args: &DiffArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let plan = args.declaration.plan(&client).map(|(_, plan)| plan).map_err(distinct)?;
    context.output.result(&PlanReport::new(&plan), PlanReport::text)?;
    if plan.steps.is_empty() { Ok(()) } else { Err(Differences.into()) }
}

/// Status 1 stands for differences, so a local failure gets status 2.
fn distinct(error: anyhow::Error) -> anyhow::Error {
    if exit_of(&error) != Exit::Failed {
        return error;
    }
    Problem::usage(error.to_string()).because(error).into()
}

impl DeclarationArgs {
    /// Reads the declaration, and compares it with the node's state.
    pub(super) fn plan(&self, client: &Client) -> Result<(Declared, Plan)> {
        let declared = declaration::read(&self.files)?;
        let prune: BTreeSet<Kind> = self.prune.iter().copied().collect();
        check_prune(&declared, &prune)?;
        let current = Current::read(client, &declared)?;
        let plan = Plan::new(&declared, &current, &prune).map_err(|problems| match &problems[..] {
            [only] => Problem::usage(only),
            several => Problem::usage(format!("there is no plan:\n  {}", several.join("\n  "))),
        })?;
        Ok((declared, plan))
    }
}

/// Refuses to delete all items of a kind, as an empty or wrong file would demand.
fn check_prune(declared: &Declared, prune: &BTreeSet<Kind>) -> Result<(), Problem> {
    for kind in prune {
        let (is_empty, command) = match kind {
            Kind::Model => (declared.models.is_empty(), "models"),
            Kind::Function => (declared.functions.is_empty(), "functions"),
            Kind::Workflow => (declared.workflows.is_empty(), "workflows"),
            Kind::Trigger => (declared.triggers.is_empty(), "triggers"),
            // `--prune` does not take this kind.
            Kind::Aliases => continue,
        };
        if is_empty {
            let text = format!("--prune {command} would delete all {command}: the declaration lists none");
            return Err(Problem::usage(text).hint(format!("`weir {command} rm NAME` removes one by name")));
        }
    }
    Ok(())
}
