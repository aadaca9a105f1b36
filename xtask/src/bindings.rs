//! `cargo xtask bindings`.

use crate::process;
use crate::repo::Repo;
use anyhow::Result;
use std::process::Command;

/// Generate the guest SDKs' bindings from `wit/`, and the messages of gRPC from `grpc/proto` and `datastore/proto`
#[derive(Debug, clap::Args)]
pub(crate) struct BindingsArgs {
    /// Only see whether they are up to date
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(repo: &Repo, args: &BindingsArgs) -> Result<()> {
    if args.check { check(repo) } else { process::run(&mut generator(repo)) }
}

/// Fail where a generated file is out of date.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    process::run(generator(repo).args(["--", "--check"]))
}

/// A program of its own, since what it is made of takes a minute to build and nothing else needs it.
fn generator(repo: &Repo) -> Command {
    let mut cargo = repo.cargo("guest-sdk/bindings");
    cargo.args(["run", "--quiet", "--target-dir"]).arg(repo.root().join("target/bindings"));
    cargo
}
