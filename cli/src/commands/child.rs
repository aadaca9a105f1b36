//! Hidden subcommands, with which this program starts itself: work on untrusted bytes, and work that holds a device, in a process of its own.

use std::process::ExitCode;
use weir_host::ChildKind;

/// Do a child's work, if that is what this process was started for: `weir SUBCOMMAND`. Runs before any argument parsing,
/// runtime or thread.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let subcommand = std::env::args_os().nth(1)?;
    let subcommand = subcommand.to_str()?;
    #[cfg(feature = "cuda")]
    if subcommand == super::doctor::STAGE_COMMAND {
        return Some(super::doctor::stage_main());
    }
    Some(ChildKind::from_subcommand(subcommand)?.main())
}
