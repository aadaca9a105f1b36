//! `cargo xtask fresh`.

mod base;
mod machine;

use crate::process;
use crate::progress::elapsed;
use crate::repo::Repo;
use crate::setup::report;
use anyhow::{Result, bail};
use base::Base;
use machine::FreshMachine;
use std::process::Command;
use std::time::Instant;

/// Run a command on a machine that has only the README's prerequisites
///
/// The machine is a minimal Debian in a folder, the root of a mount namespace, with a process
/// namespace. It has the packages that the README states, this machine's Rust toolchain, an empty
/// cargo cache, and a clone of the last commit, in which the command runs. It uses this machine's
/// network and processors. The exit status is that of the command.
///
/// The Debian system is created once, in `.weir/fresh/` (needs root and debootstrap). Every run
/// uses a copy, which is removed at the end of the run.
///
/// Examples:
///   cargo xtask fresh cargo xtask demo
///   cargo xtask fresh --keep cargo xtask test
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct FreshArgs {
    /// Keep the machine's folder, and print its path
    #[arg(long)]
    keep: bool,
    /// Recreate the Debian system with the newest packages
    #[arg(long)]
    renew: bool,
    /// Command with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(repo: &Repo, args: &FreshArgs) -> Result<()> {
    let base = Base::open(repo, args.renew)?;
    note_uncommitted(repo);
    let machine = FreshMachine::copy_of(&base, repo)?;
    eprintln!("running {} on a fresh machine", args.command.join(" "));
    let start = Instant::now();
    let status = machine.run(&args.command)?;
    let took = elapsed(start);
    if args.keep {
        report("kept", &machine.keep().display().to_string());
    } else {
        machine.remove()?;
    }
    if !status.success() {
        bail!(
            "`{}` failed on a fresh machine after {took} ({status}); its output is above",
            args.command.join(" ")
        );
    }
    report("passed", &format!("`{}` on a fresh machine in {took}", args.command.join(" ")));
    Ok(())
}

/// Prints a note about uncommitted changes, because only commits reach the clone.
fn note_uncommitted(repo: &Repo) {
    let mut status = Command::new("git");
    status.args(["status", "--porcelain", "--untracked-files=no"]).current_dir(repo.root());
    if process::answer(&mut status).is_ok_and(|changes| !changes.is_empty()) {
        report("note", "uncommitted changes are not part of the run: it uses the last commit");
    }
}
