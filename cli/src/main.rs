//! `weir`: the node and its client in one program.
//!
//! Control flow: the arguments ([`args`]) and settings ([`settings`]) select a subcommand in
//! [`commands`], which uses the node's API ([`client`]), the function's project ([`project`]) or a
//! declaration ([`declaration`]), and reports its result ([`output`], [`error`]).

mod args;
mod settings;
mod since;

mod commands;

mod client;
mod declaration;
mod project;
mod repository;
mod uploads;

mod error;
mod files;
mod onnx;
mod output;

use clap::Parser as _;
use std::process::ExitCode;

/// Variable that keeps ONNX Runtime from collecting and sending data about its use. The setting of
/// its interface takes effect after it has looked for Microsoft's server and written files.
const NO_TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

fn main() -> ExitCode {
    disable_telemetry();
    // First, before any allocation of the node: a child process must stay within its memory limit.
    if let Some(code) = commands::child::dispatch() {
        return code;
    }
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return args::refuse(error),
    };
    let json = args.global.json;
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error::report(&error, json),
    }
}

#[allow(unsafe_code, reason = "ONNX Runtime reads the environment of the process")]
fn disable_telemetry() {
    // SAFETY: `main` calls this first, when the process has no other thread.
    unsafe { std::env::set_var(NO_TELEMETRY, "1") };
}
