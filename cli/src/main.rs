//! `weir`: one program that is the node and its client.
//!
//! In the order a run goes: the arguments ([`args`]) and settings ([`settings`]) say what to do, one file under [`commands`] does it,
//! through the node's API ([`client`]) or on the function's project ([`project`]), and tells about it ([`output`], [`error`]).

mod args;
mod settings;

mod commands;

mod client;
mod project;

mod error;
mod files;
mod output;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: a child must stay as small as its memory limit asks for.
    if let Some(code) = commands::child::dispatch() {
        return code;
    }
    let args = args::Args::parse();
    let json = args.global.json;
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error::report(&error, json),
    }
}
