//! Licences, sources and known vulnerabilities of dependencies, by `cargo-deny`.

use crate::process;
use crate::repo::Repo;
use crate::setup;
use anyhow::{Context as _, Result};
use std::process::Command;

/// Check the dependencies of the workspace against `deny.toml`.
pub(super) fn check(repo: &Repo, is_offline: bool) -> Result<()> {
    let program = setup::tools(repo)?.join("cargo-deny");
    let deny = |arguments: &[&str]| {
        let mut deny = Command::new(&program);
        deny.current_dir(repo.root()).args(is_offline.then_some("--offline")).args(arguments);
        process::run(&mut deny)
    };
    deny(&["check", "licenses", "bans", "sources"])?;
    if is_offline {
        eprintln!("offline: known vulnerabilities of dependencies were not checked");
        return Ok(());
    }
    deny(&["check", "advisories"]).context(
        "a dependency has a known vulnerability, or the database of advisories cannot be downloaded (`cargo xtask check --offline` leaves it out)",
    )
}
