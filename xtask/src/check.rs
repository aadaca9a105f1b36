//! `cargo xtask check`.

mod layers;
mod prose;
mod sizes;
mod source;

use crate::bindings;
use crate::process;
use crate::repo::Repo;
use anyhow::{Result, bail};
use source::Source;

/// Run the other checks of CI: style counters, format, lints, generated files, licences and advisories
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Run the style counters only: prose of comments, cycles between modules, and sizes of functions and structs
    #[arg(long)]
    style: bool,
}

pub(crate) fn run(repo: &Repo, args: &CheckArgs) -> Result<()> {
    style(repo)?;
    if args.style {
        return Ok(());
    }
    process::run(repo.cargo(".").args(["fmt", "--all", "--check"]))?;
    process::run(repo.cargo("functions").args(["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets"];
    process::run(repo.cargo(".").args(clippy).args(["--", "-D", "warnings"]))?;
    // The demo's build.
    let demo = ["clippy", "-p", "weir-cli", "--no-default-features"];
    process::run(repo.cargo(".").args(demo).args(["--", "-D", "warnings"]))?;
    // On the host, which has clippy for certain; guests' code is the same there.
    let mut functions = repo.cargo("functions");
    functions.env_remove("CARGO_TARGET_DIR").args(clippy).args(["--", "-D", "warnings"]);
    process::run(&mut functions)?;
    bindings::check(repo)?;
    if process::succeeds(repo.cargo(".").args(["deny", "--version"])) {
        process::run(repo.cargo(".").args(["deny", "check"]))
    } else {
        eprintln!(
            "cargo-deny is not installed, so licences and advisories were not checked (`cargo install cargo-deny`)"
        );
        Ok(())
    }
}

/// Compare the style of every Rust file in version control with the limits of each counter.
fn style(repo: &Repo) -> Result<()> {
    let sources = Source::all(repo)?;
    let findings: Vec<String> =
        [prose::check(&sources), layers::check(&sources), sizes::check(&sources)].concat();
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{}\n\nWhat to do: CONTRIBUTING.md, \"Style\"", findings.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_within_the_limits_of_style() {
        style(&Repo::find()).unwrap();
    }
}
