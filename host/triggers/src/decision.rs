//! The outcome of a tick that is due. Pure.

use crate::schedule::Schedule;
use weir_types::api::{MissedPolicy, TriggerSpec};

/// A tick that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueTick {
    /// Scheduled time: the latest tick that is due.
    pub(crate) at_ms: u64,
    /// Ticks before it that have no outcome.
    pub(crate) passed: u64,
    /// Whether the tick still sends its request.
    pub(crate) is_in_time: bool,
}

/// Chooses the tick to handle at `now_ms`, if one is due after `base_ms`. Earlier ticks that are due,
/// too, are missed.
pub(crate) fn due_tick(
    schedule: &Schedule,
    spec: &TriggerSpec,
    base_ms: u64,
    now_ms: u64,
    late_ms_max: u64,
) -> Option<DueTick> {
    let at_ms = schedule.latest(base_ms, now_ms)?;
    let age_ms = now_ms - at_ms;
    let age_ms_max = match spec.missed {
        MissedPolicy::Skip => late_ms_max,
        MissedPolicy::RunOnce => late_ms_max.max(spec.missed_age_ms_max),
    };
    Some(DueTick { at_ms, passed: schedule.count(base_ms, at_ms), is_in_time: age_ms <= age_ms_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn tick(missed: &str, base_ms: u64, now_ms: u64) -> Option<DueTick> {
        let spec = format!(
            r#"{{"source": {{"every_ms": {HOUR_MS}}}, "target": {{"function": "f"}}, "missed": "{missed}", "missed_age_ms_max": {}}}"#,
            HOUR_MS / 2
        );
        let schedule = Schedule::Every { every_ms: HOUR_MS, start_ms: 0 };
        due_tick(&schedule, &serde_json::from_str(&spec).unwrap(), base_ms, now_ms, 60_000)
    }

    #[test]
    fn nothing_is_due_before_the_next_tick() {
        assert_eq!(tick("skip", 0, HOUR_MS - 1), None);
        assert_eq!(tick("skip", 2 * HOUR_MS, HOUR_MS), None, "the clock was set back");
    }

    #[test]
    fn late_tick_is_sent_within_the_limit() {
        let due = DueTick { at_ms: HOUR_MS, passed: 0, is_in_time: true };
        assert_eq!(tick("skip", 0, HOUR_MS), Some(due));
        assert_eq!(tick("skip", 0, HOUR_MS + 60_000), Some(due));
        assert_eq!(tick("skip", 0, HOUR_MS + 60_001), Some(DueTick { is_in_time: false, ..due }));
    }

    #[test]
    fn run_once_makes_up_the_latest_of_the_missed_ticks() {
        let due = DueTick { at_ms: 5 * HOUR_MS, passed: 4, is_in_time: true };
        assert_eq!(tick("run-once", 0, 5 * HOUR_MS + HOUR_MS / 2), Some(due));
        let too_old = DueTick { is_in_time: false, ..due };
        assert_eq!(tick("run-once", 0, 5 * HOUR_MS + HOUR_MS / 2 + 1), Some(too_old));
        assert_eq!(tick("skip", 0, 5 * HOUR_MS + HOUR_MS / 2), Some(too_old));
    }
}
