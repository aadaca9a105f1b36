//! Modes of files as a protection against this process, for processes that the other layers cannot
//! confine.

use super::filter;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Capabilities that ignore or change modes and owners of files.
const OVER_MODES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// Makes the modes of files binding for this thread and the threads that it starts, also for the
/// owner of a file and for root: the thread cannot change modes, owners and access control lists, and
/// has no capability to ignore them.
///
/// # Errors
/// The system does not support it; the message names the refused step.
pub fn keep_file_modes() -> Result<(), String> {
    let refused = |error: rustix::io::Errno| format!("dropping capabilities: {error}");
    let mut sets = capabilities(None).map_err(refused)?;
    sets.effective -= OVER_MODES;
    sets.permitted -= OVER_MODES;
    sets.inheritable -= OVER_MODES;
    set_capabilities(None, sets).map_err(refused)?;
    filter::refuse_mode_changes()
}
