//! Benchmarks of Weir and its peers on one machine, in interleaved rounds.
//!
//! `cargo xtask bench` provides the programs and runs this. In order of the data flow: [`args`]
//! selects the suites; [`contender`] interleaves the rounds; [`server`] starts a program, [`load`]
//! puts it under load with wrk and [`arrivals`] at random times, [`collector`] receives its traces,
//! and [`process`] reads its resource use; [`protocol`] encodes inference requests; [`interrupt`]
//! handles Ctrl-C. The suites are [`hello`], [`inference`],
//! [`serving`], [`coldstart`], [`neighbours`], [`tenants`], [`languages`], [`cluster`], [`faults`],
//! [`batching`], [`workflows`], [`overload`], [`calls`] and [`isolation`]. [`report`] prints the
//! results and writes them into the documentation.

mod args;
mod arrivals;
mod collector;
mod contender;
mod interrupt;
mod load;
mod machine;
mod process;
mod protocol;
mod server;
mod stats;
mod weir;

mod batching;
mod calls;
mod cluster;
mod coldstart;
mod faults;
mod hello;
mod inference;
mod isolation;
mod languages;
mod neighbours;
mod overload;
mod serving;
mod tenants;
mod workflows;

mod report;

use anyhow::{Context as _, Result};
use args::{Args, Suite};
use clap::Parser as _;
use report::Section;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    interrupt::watch()?;
    let heading = report::Heading {
        machine: machine::describe()?,
        command: args.command_line(),
        commit: args.commit.clone(),
    };
    heading.print();
    let mut sections = Vec::new();
    for suite in args.suites() {
        let section: Section = match suite {
            Suite::Hello => hello::run(args),
            Suite::Inference => inference::run(args),
            Suite::Isolation => isolation::run(args),
            Suite::Serving => serving::run(args),
            Suite::Coldstart => coldstart::run(args),
            Suite::Neighbours => neighbours::run(args),
            Suite::Tenants => tenants::run(args),
            Suite::Languages => languages::run(args),
            Suite::Cluster => cluster::run(args),
            Suite::Batching => batching::run(args),
            Suite::Workflows => workflows::run(args),
            Suite::Overload => overload::run(args),
            Suite::Calls => calls::run(args),
            Suite::Faults => faults::run(args),
        }
        .with_context(|| format!("the {suite} benchmark failed"))?;
        section.print();
        // After each suite, so that the failure of a later suite loses no results.
        if let Some(page) = &args.write {
            section.write(&heading, page)?;
        }
        sections.push(section);
        if let Some(path) = &args.json {
            report::write_json(path, &heading, &sections)?;
        }
    }
    Ok(())
}
