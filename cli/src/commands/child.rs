//! Hidden subcommands for child processes of this program, which process untrusted bytes or hold a
//! device.

use std::process::ExitCode;
use weir_host::ChildKind;

/// Runs the work of a child process if the first argument is a hidden subcommand. Must be called
/// before argument parsing and before any runtime or thread starts.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let subcommand = std::env::args_os().nth(1)?;
    let subcommand = subcommand.to_str()?;
    #[cfg(feature = "cuda")]
    if subcommand == super::doctor::STAGE_COMMAND {
        return Some(super::doctor::stage_main());
    }
    Some(ChildKind::from_subcommand(subcommand)?.main())
}
