//! Retry policy: decides about an invocation whose attempt failed. Pure functions.

use crate::AsyncConfig;
use http::StatusCode;
use weir_types::ErrorCode;

/// Time after the start of an attempt within which a restart of its node does not count as an
/// attempt.
const BRIEF_MS: u64 = 1_000;
/// Attempts of an invocation that do not count although they ended with their node. The limit ends
/// a call that crashes its node each time.
const UNCOUNTED_MAX: u32 = 3;

/// Decision about a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// No retry: it would not help, or the attempts or the time are used up.
    Dead,
    /// Retry after this time.
    Again {
        after_ms: u64,
        /// Whether the failure counts as an attempt.
        is_counted: bool,
    },
}

/// A failed attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedAttempt {
    pub(super) code: ErrorCode,
    /// HTTP status of the code.
    pub(super) status: StatusCode,
    /// Attempts so far, including this one.
    pub(super) attempts: u32,
    /// Time since the invocation was accepted.
    pub(super) age_ms: u64,
}

/// Judges a failure. `chance`, from 0 to 1, spreads the retries of attempts that failed together.
pub(super) fn judge(failure: FailedAttempt, config: &AsyncConfig, chance: f64) -> RetryDecision {
    let FailedAttempt { code, status, attempts, age_ms } = failure;
    let has_not_begun = matches!(code, ErrorCode::QueueFull | ErrorCode::Unavailable | ErrorCode::NoDevice);
    if has_not_begun {
        // The pause grows with the age of the invocation.
        let after_ms = (age_ms / 4).clamp(config.backoff_ms, config.backoff_ms_max.max(config.backoff_ms));
        return match age_ms >= config.age_ms_max {
            true => RetryDecision::Dead,
            false => RetryDecision::Again { after_ms: spread(after_ms, chance), is_counted: false },
        };
    }
    let is_callers = status.is_client_error() && code != ErrorCode::Cancelled;
    if is_callers || code == ErrorCode::NotSupported || attempts >= config.attempts_max {
        return RetryDecision::Dead;
    }
    RetryDecision::Again { after_ms: backoff_ms(attempts, config, chance), is_counted: true }
}

/// An attempt that ended with its node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    /// Attempts so far, including this one.
    pub(super) attempts: u32,
    /// Earlier attempts that ended with their node and do not count.
    pub(super) uncounted: u32,
    /// Longest time that the attempt can have run; `None` if it is unknown.
    pub(super) ran_ms_max: Option<u64>,
}

/// Judges the loss of an attempt with its node. A node that restarts soon after the attempt began
/// is no evidence against the invocation, unless this happens repeatedly.
pub(super) fn judge_loss(loss: Loss, config: &AsyncConfig, chance: f64) -> RetryDecision {
    let Loss { attempts, uncounted, ran_ms_max } = loss;
    let is_counted = uncounted >= UNCOUNTED_MAX || ran_ms_max.is_none_or(|ran_ms| ran_ms > BRIEF_MS);
    if is_counted && attempts >= config.attempts_max.max(1) {
        return RetryDecision::Dead;
    }
    RetryDecision::Again {
        after_ms: backoff_ms(attempts.saturating_add(uncounted), config, chance),
        is_counted,
    }
}

/// Returns the backoff after this number of attempts.
pub(super) fn backoff_ms(attempts: u32, config: &AsyncConfig, chance: f64) -> u64 {
    let doubled = config.backoff_ms.saturating_mul(1 << attempts.saturating_sub(1).min(40));
    spread(doubled.min(config.backoff_ms_max), chance)
}

/// Returns a value between half of `ms` and all of `ms`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a backoff needs no exact milliseconds"
)]
fn spread(ms: u64, chance: f64) -> u64 {
    ms - (ms as f64 / 2.0 * chance.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_call::status;

    fn judged(code: ErrorCode, attempts: u32, age_ms: u64) -> RetryDecision {
        judge(FailedAttempt { code, status: status(code), attempts, age_ms }, &AsyncConfig::default(), 0.0)
    }

    #[test]
    fn client_errors_are_final_and_faults_are_retried() {
        for code in [
            ErrorCode::FunctionNotFound,
            ErrorCode::InvalidRequest,
            ErrorCode::BodyTooLarge,
            ErrorCode::NotSupported,
        ] {
            assert_eq!(judged(code, 1, 0), RetryDecision::Dead, "{code}");
        }
        for code in [
            ErrorCode::GuestTrap,
            ErrorCode::DeadlineExceeded,
            ErrorCode::NodeLost,
            ErrorCode::WorkerLost,
            ErrorCode::Cancelled,
        ] {
            assert_eq!(
                judged(code, 1, 0),
                RetryDecision::Again { after_ms: 1_000, is_counted: true },
                "{code}"
            );
            assert_eq!(
                judged(code, 2, 0),
                RetryDecision::Again { after_ms: 2_000, is_counted: true },
                "{code}"
            );
            assert_eq!(judged(code, 3, 0), RetryDecision::Dead, "{code}");
        }
    }

    #[test]
    fn rejected_starts_back_off_until_the_age_limit() {
        let again = |after_ms| RetryDecision::Again { after_ms, is_counted: false };
        assert_eq!(judged(ErrorCode::QueueFull, 3, 0), again(1_000));
        assert_eq!(judged(ErrorCode::Unavailable, 9, 40_000), again(10_000));
        assert_eq!(judged(ErrorCode::QueueFull, 1, 3_600_000), again(60_000));
        assert_eq!(judged(ErrorCode::QueueFull, 1, 6 * 3_600_000), RetryDecision::Dead);
    }

    fn lost(attempts: u32, uncounted: u32, ran_ms_max: Option<u64>) -> RetryDecision {
        judge_loss(Loss { attempts, uncounted, ran_ms_max }, &AsyncConfig::default(), 0.0)
    }

    #[test]
    fn lost_attempts_are_retried_with_backoff() {
        for ran_ms_max in [None, Some(1_001)] {
            assert_eq!(lost(1, 0, ran_ms_max), RetryDecision::Again { after_ms: 1_000, is_counted: true });
            assert_eq!(lost(2, 0, ran_ms_max), RetryDecision::Again { after_ms: 2_000, is_counted: true });
            assert_eq!(lost(3, 0, ran_ms_max), RetryDecision::Dead);
        }
    }

    #[test]
    fn restarts_within_the_first_second_do_not_count_at_first() {
        let uncounted = |after_ms| RetryDecision::Again { after_ms, is_counted: false };
        assert_eq!(lost(1, 0, Some(300)), uncounted(1_000));
        assert_eq!(lost(1, 1, Some(300)), uncounted(2_000));
        assert_eq!(lost(3, 2, Some(1_000)), uncounted(16_000), "the last attempt does not count either");
        assert_eq!(lost(1, 3, Some(300)), RetryDecision::Again { after_ms: 8_000, is_counted: true });
        assert_eq!(lost(3, 3, Some(300)), RetryDecision::Dead);
    }

    proptest! {
        /// An invocation that takes its node down each time ends, however soon it does.
        #[test]
        fn invocation_that_always_loses_its_node_ends(times in prop::collection::vec(prop::option::of(0_u64..3_000), 20)) {
            let mut attempts = 0;
            let mut uncounted = 0;
            for (count, ran_ms_max) in times.into_iter().enumerate() {
                attempts += 1;
                match judge_loss(Loss { attempts, uncounted, ran_ms_max }, &AsyncConfig::default(), 0.5) {
                    RetryDecision::Dead => return Ok(()),
                    RetryDecision::Again { after_ms, is_counted } => {
                        prop_assert!(after_ms > 0 && count < 6);
                        attempts -= u32::from(!is_counted);
                        uncounted += u32::from(!is_counted);
                    }
                }
            }
            prop_assert!(false, "it goes on");
        }

        #[test]
        fn backoff_and_attempts_stay_within_limits(
            code in proptest::sample::select(ErrorCode::ALL), attempts: u32, age_ms: u64, chance in 0.0..=1.0,
            backoff_ms: u64, backoff_ms_max: u64,
        ) {
            let config = AsyncConfig { backoff_ms, backoff_ms_max, ..AsyncConfig::default() };
            let failure = FailedAttempt { code, status: status(code), attempts, age_ms };
            if let RetryDecision::Again { after_ms, is_counted } = judge(failure, &config, chance) {
                prop_assert!(after_ms <= backoff_ms_max.max(backoff_ms));
                prop_assert!(!is_counted || attempts < config.attempts_max);
                prop_assert!(is_counted || age_ms < config.age_ms_max);
            }
        }
    }
}
