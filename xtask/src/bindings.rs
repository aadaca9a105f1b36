//! `cargo xtask bindings`.

use crate::process;
use crate::repo::Repo;
use anyhow::Result;
use std::process::Command;

/// Generate the guest SDKs' bindings from `wit/`, and the gRPC messages from `grpc/proto` and
/// `datastore/proto`
#[derive(Debug, clap::Args)]
pub(crate) struct BindingsArgs {
    /// Only check that the generated files are up to date
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(repo: &Repo, args: &BindingsArgs) -> Result<()> {
    if args.check { check(repo) } else { process::run(&mut generator(repo)) }
}

/// Fails if a generated file is out of date.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    process::run(generator(repo).args(["--", "--check"]))
}

/// Generator command. It is a separate program, because its dependencies take a minute to build.
fn generator(repo: &Repo) -> Command {
    let mut cargo = repo.cargo("guest-sdk/bindings");
    cargo.args(["run", "--quiet", "--target-dir"]).arg(repo.root().join("target/bindings"));
    cargo
}
