//! `weir apply`.

mod run;

use crate::commands::CommandContext;
use crate::commands::diff::DeclarationArgs;
use crate::commands::up::Signals;
use crate::declaration::{Plan, PlanReport, Step};
use crate::error::{Exit, Problem};
use crate::settings::ClientArgs;
use anyhow::Result;
use run::Apply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Make the node equal to a declaration: functions, models, workflows and triggers in a file
///
/// Prints the differences, and makes the changes: first models, then functions, then workflows, then
/// triggers. A second apply changes nothing. Components and models that the node has already are
/// not sent again. Stops at the first error, with the changes that were made and those that were
/// not; the same command continues after the error is mended.
///
/// Nothing is deleted without --prune, which needs --yes.
///
/// Examples:
///   weir apply                                  # weir.yaml in this folder
///   weir apply -f deploy/production.yaml --dry-run
///   weir apply -f models.yaml -f functions.yaml
///   weir apply -f deploy/ --prune functions,workflows --yes
///   envsubst < weir.yaml.in | weir apply -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    declaration: DeclarationArgs,
    /// Confirm the deletions of --prune
    #[arg(long)]
    yes: bool,
    /// Only print the differences, as `weir diff` does, with exit status 0
    #[arg(long)]
    dry_run: bool,
    /// Wait until the node has promoted the canaries with promote_after_ms, and fail if it rolls a
    /// canary back
    #[arg(long)]
    wait: bool,
    /// Push models even if they have other inputs or outputs than the newest versions
    #[arg(long)]
    allow_signature_change: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &ApplyArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let output = context.output;
    let (declared, plan) = args.declaration.plan(&client)?;
    if args.dry_run {
        return output.result(&PlanReport::new(&plan), PlanReport::text);
    }
    if !output.json {
        output.line(&PlanReport::new(&plan).text())?;
    }
    check_deletions(&plan, args.yes)?;
    let stop = Arc::new(AtomicBool::new(false));
    let apply = Apply {
        declared,
        client,
        output,
        wait: args.wait,
        allow_signature_change: args.allow_signature_change,
        stop: stop.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut work = tokio::task::spawn_blocking(move || apply.run(plan));
        loop {
            tokio::select! {
                ended = &mut work => return ended?,
                () = signals.next() => {}
            }
            if stop.swap(true, Ordering::Relaxed) {
                let text = "interrupted during a change, which the node may still make";
                let problem = Problem::new(text).exit(Exit::Interrupted);
                return Err(problem.hint("the same command makes the missing changes").into());
            }
            output.note("stopping after this change; Ctrl-C again abandons it");
        }
    });
    // The thread may still wait for the node's answer.
    runtime.shutdown_background();
    ended
}

/// Refuses deletions that were not confirmed.
fn check_deletions(plan: &Plan, yes: bool) -> Result<(), Problem> {
    let names: Vec<String> =
        plan.deletions().map(|Step { kind, name, .. }| format!("{kind} {name}")).collect();
    if yes || names.is_empty() {
        return Ok(());
    }
    let text = format!("--prune would delete {}; nothing was changed", names.join(", "));
    Err(Problem::usage(text).hint("confirm the deletions with --yes, or list the items in the declaration"))
}
