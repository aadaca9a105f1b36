//! `weir build`.

use crate::commands::Context;
use crate::project::Built;
use anyhow::Result;

/// Build this project's function
///
/// Runs the `build` command of weir.toml and checks that a component comes out, or, where weir.toml
/// names a `world` of wit/, makes one of the core module that does. What the command needs is found, or installed first, and said:
///   - where there is a Cargo.toml: Rust for wasm32-wasip2, with rustup or else from Debian's packages
///   - where there is a toolchain.txt: what it pins on PyPI, and what requirements.txt asks for, into
///     .weir/python
///   - where there is a package.json: what package-lock.json pins, into node_modules
///
/// With --snapshot (or `snapshot = true` in weir.toml) the component is pre-initialised: its
/// export `wizer-initialize` (or the one that `snapshot_init` names) runs once, now, and every
/// instance starts from the memory it leaves. Random numbers and times that it reads are then the
/// same in every instance.
///
/// Examples:
///   weir build
///   weir build --snapshot
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BuildArgs {
    /// Pre-initialise the component
    #[arg(long)]
    snapshot: bool,
}

pub(crate) fn run(args: &BuildArgs, context: &Context) -> Result<()> {
    let built = context.project()?.build(args.snapshot, context.output, None)?;
    context.output.result(&built, Built::text)
}
