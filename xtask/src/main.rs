//! Developer automation. `cargo xtask setup` prepares a fresh machine; every other command also
//! installs its own tools.
//!
//! Few dependencies and no async, because this crate is compiled first on a fresh clone.

mod parallel;
mod prerequisites;
mod process;
mod progress;
mod repo;

mod functions;
mod kernels;
mod models;
mod setup;
mod ui;
mod weir;

mod bench;
mod bindings;
mod check;
mod conformance;
mod demo;
mod dist;
mod fresh;
mod fuzz;
mod gpu_kit;
mod test;
mod torture;

use anyhow::Result;
use clap::{Parser, Subcommand};
use repo::Repo;
use std::process::ExitCode;

/// Developer automation for Weir.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Setup(setup::SetupArgs),
    Functions(functions::BuildFunctionsArgs),
    Models(models::MakeModelsArgs),
    Kernels(kernels::KernelsArgs),
    Ui(ui::UiArgs),
    Demo(demo::DemoArgs),
    Test(test::TestArgs),
    Check(check::CheckArgs),
    Conformance(conformance::ConformanceArgs),
    Bench(bench::BenchArgs),
    Bindings(bindings::BindingsArgs),
    Dist(dist::DistArgs),
    Fresh(fresh::FreshArgs),
    Fuzz(fuzz::FuzzArgs),
    GpuKit(gpu_kit::GpuKitArgs),
    Torture(torture::TortureArgs),
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            error.chain().skip(1).for_each(|cause| eprintln!("  because: {cause}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let repo = Repo::find();
    match &args.command {
        Command::Setup(args) => setup::run(&repo, args),
        Command::Functions(args) => functions::run(&repo, args),
        Command::Models(args) => models::run(&repo, args),
        Command::Kernels(args) => kernels::run(&repo, args),
        Command::Ui(args) => ui::run(&repo, args),
        Command::Demo(args) => demo::run(&repo, args),
        Command::Test(args) => test::run(&repo, args),
        Command::Check(args) => check::run(&repo, args),
        Command::Conformance(args) => conformance::run(&repo, args),
        Command::Bench(args) => bench::run(&repo, args),
        Command::Bindings(args) => bindings::run(&repo, args),
        Command::Dist(args) => dist::run(&repo, args),
        Command::Fresh(args) => fresh::run(&repo, args),
        Command::Fuzz(args) => fuzz::run(&repo, args),
        Command::GpuKit(args) => gpu_kit::run(&repo, args),
        Command::Torture(args) => torture::run(&repo, args),
    }
}
