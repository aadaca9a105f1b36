//! `cargo xtask check`.

mod dependencies;
mod layers;
mod links;
mod prose;
mod sizes;
mod source;
mod statements;

use crate::bindings;
use crate::kernels;
use crate::process;
use crate::repo::Repo;
use anyhow::{Result, bail};
use source::RustFile;
use std::process::Command;

/// Run the other checks of CI: style counters, format, lints, the documentation of the
/// crates, generated files, licences and advisories
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Run the checks of style only: links of the documentation, prose of comments, cycles between
    /// modules, sizes of functions and structs, and statements
    #[arg(long)]
    style: bool,
    /// Leave out known vulnerabilities of dependencies, whose database is downloaded from GitHub
    #[arg(long)]
    offline: bool,
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
    let mut doc = repo.cargo(".");
    doc.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    process::run(&mut doc)?;
    bindings::check(repo)?;
    kernels::compare(repo, &[])?;
    let mut book = Command::new("mdbook");
    book.arg("build").current_dir(repo.root());
    optional("mdbook", &mut book, "the documentation was not built")?;
    dependencies::check(repo, args.offline)
}

/// Run a check whose program may be missing, which is printed with `skipped`.
fn optional(program: &str, command: &mut Command, skipped: &str) -> Result<()> {
    if process::succeeds(Command::new(program).arg("--version")) {
        return process::run(command);
    }
    eprintln!("{program} is not installed, so {skipped} (`cargo install {program}`)");
    Ok(())
}

/// Compare the style of every Rust file in version control with the limits of each counter.
fn style(repo: &Repo) -> Result<()> {
    let sources = RustFile::all(repo)?;
    let findings: Vec<String> = [
        links::check(repo)?,
        prose::check(&sources),
        layers::check(&sources),
        sizes::check(&sources),
        statements::check(&sources),
    ]
    .concat();
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
