//! `cargo xtask test` and `cargo xtask check`.

use crate::functions::{self, FunctionsArgs};
use crate::process;
use crate::repo::Repo;
use crate::setup::{self, SetupArgs};
use crate::{models, weir};
use anyhow::Result;

/// Install what is missing, build everything, run every test
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Passed on to `cargo test`, such as a part of a test's name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(repo: &Repo, args: &TestArgs) -> Result<()> {
    eprintln!("setting up");
    setup::run(repo, &SetupArgs {})?;
    models::minilm(repo)?;
    models::light(repo)?;
    eprintln!("building the functions");
    functions::run(repo, &FunctionsArgs::default())?;
    eprintln!("building weir");
    // The end-to-end suites run the program itself.
    weir::build(repo)?;
    eprintln!("testing");
    process::run(repo.cargo(".").args(["test", "--workspace", "--no-fail-fast"]).args(&args.rest))
}

/// What CI checks besides the tests: format, lints, licences and advisories
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {}

pub(crate) fn check(repo: &Repo, _args: &CheckArgs) -> Result<()> {
    process::run(repo.cargo(".").args(["fmt", "--all", "--check"]))?;
    process::run(repo.cargo("functions").args(["fmt", "--all", "--check"]))?;
    process::run(repo.cargo(".").args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    if process::succeeds(repo.cargo(".").args(["deny", "--version"])) {
        process::run(repo.cargo(".").args(["deny", "check"]))
    } else {
        eprintln!(
            "cargo-deny is not installed, so licences and advisories were not checked (`cargo install cargo-deny`)"
        );
        Ok(())
    }
}
