//! The subcommands that a node starts itself with, hidden from people: work on untrusted bytes in a process of its own.

use std::process::ExitCode;
use weir_host::ChildKind;

/// Do a child's work, if that is what this process was started for: `weir SUBCOMMAND`. Runs before any argument parsing,
/// runtime or thread.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let subcommand = std::env::args_os().nth(1)?;
    Some(ChildKind::from_subcommand(subcommand.to_str()?)?.main())
}
