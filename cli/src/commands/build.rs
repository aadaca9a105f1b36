//! `weir build`.

use crate::commands::CommandContext;
use crate::project::BuildResult;
use anyhow::Result;

/// Build this project's function
///
/// Runs the `build` command of weir.toml and checks that it produces a component. If weir.toml
/// names a `world` of wit/, converts the core module that the command produced. Missing tools are
/// installed first, with a note for each step:
///   - with a Cargo.toml: Rust for wasm32-wasip2, from rustup or from Debian's packages
///   - with a toolchain.txt: its PyPI packages, once for all projects of this user; .weir/toolchain
///     links to them. Those of requirements.txt go into .weir/python
///   - with a package.json: the packages that package-lock.json pins, into node_modules
///
/// With --snapshot (or `snapshot = true` in weir.toml), pre-initialises the component: its export
/// `wizer-initialize` (or the export in `snapshot_init`) runs once at build time, and every
/// instance starts from the resulting memory. Random numbers and times that it reads are then the
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

pub(crate) fn run(args: &BuildArgs, context: &CommandContext) -> Result<()> {
    let built = context.project()?.build(args.snapshot, context.output, None)?;
    context.output.result(&built, BuildResult::text)
}
