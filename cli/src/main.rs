//! `weir`: the node and its client in one program.
//!
//! Control flow: the arguments ([`args`]) and settings ([`settings`]) select a subcommand in
//! [`commands`], which uses the node's API ([`client`]) or the function's project ([`project`]) and
//! reports its result ([`output`], [`error`]).

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
    // First, before any allocation of the node: a child process must stay within its memory limit.
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
