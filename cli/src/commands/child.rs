//! The subcommands that a node starts itself with, hidden from people: work on untrusted bytes in a process of its own.

use std::process::ExitCode;
use weir_host::ChildKind;

/// Do a child's work, if that is what this process was started for: `weir SUBCOMMAND REQUEST-JSON`. Runs before any argument parsing,
/// runtime or thread.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let kind = ChildKind::from_subcommand(args.next()?.to_str()?)?;
    Some(kind.main(&args.next().unwrap_or_default().to_string_lossy()))
}
