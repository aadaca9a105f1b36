//! Failed authentications by remote address. The answers to an address become slower with each
//! failure.
//!
//! Only failed attempts wait. A client with a valid token is served at once, even if other clients
//! with the same address fail.

use crate::remote::network;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Attempts of an address that are answered at once, for clients with a mistake in their settings.
const FREE: u32 = 5;
/// Wait of the first slowed attempt. It doubles with each further attempt.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Time without failures after which an address is forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// Maximum number of remembered addresses. Attempts of further addresses wait as long as those of a
/// remembered address.
const ADDRESSES_MAX: usize = 10_000;

/// Failed authentications by remote address.
#[derive(Default)]
pub(crate) struct Failures(Mutex<HashMap<IpAddr, Recent>>);

/// The treatment of a failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Time to wait before the answer.
    pub(crate) wait: Duration,
    /// Whether the audit log has the attempt: the first, second, fourth, eighth and so on of an
    /// address.
    pub(crate) is_recorded: bool,
}

struct Recent {
    count: u32,
    last: Instant,
}

impl Failures {
    /// Counts a failed attempt, and returns its treatment.
    pub(crate) fn note(&self, from: IpAddr) -> Failure {
        let from = network(from);
        let now = Instant::now();
        let mut all = self.0.lock();
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&from) {
            all.retain(|_, recent| now.duration_since(recent.last) < FORGET);
            if all.len() >= ADDRESSES_MAX {
                return Failure { wait: WAIT_MAX, is_recorded: false };
            }
        }
        let recent = all.entry(from).or_insert(Recent { count: 0, last: now });
        if now.duration_since(recent.last) >= FORGET {
            recent.count = 0;
        }
        recent.count = recent.count.saturating_add(1);
        recent.last = now;
        let wait = |slowed: u32| WAIT_MIN.saturating_mul(2_u32.saturating_pow(slowed.min(30))).min(WAIT_MAX);
        Failure {
            wait: recent.count.checked_sub(FREE + 1).map_or(Duration::ZERO, wait),
            is_recorded: recent.count.is_power_of_two(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_failures_of_an_address_wait_longer_until_it_pauses() {
        let failures = Failures::default();
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let first: Vec<_> = (0..FREE).map(|_| failures.note(one)).collect();
        assert!(first.iter().all(|failure| failure.wait == Duration::ZERO), "{first:?}");
        let recorded: Vec<bool> = first.iter().map(|failure| failure.is_recorded).collect();
        assert_eq!(recorded, [true, true, false, true, false]);
        assert_eq!(failures.note(one).wait, WAIT_MIN);
        assert_eq!(failures.note(one).wait, 2 * WAIT_MIN);
        for _ in 0..100 {
            failures.note(one);
        }
        assert_eq!(failures.note(one).wait, WAIT_MAX);
        assert_eq!(failures.note("192.0.2.2".parse().unwrap()).wait, Duration::ZERO, "another address");
        tokio::time::advance(FORGET).await;
        assert_eq!(failures.note(one).wait, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_addresses_is_limited() {
        let failures = Failures::default();
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        for number in 0..u32::try_from(ADDRESSES_MAX).unwrap() {
            failures.note(address(number));
        }
        assert_eq!(failures.note(address(u32::MAX)).wait, WAIT_MAX);
        assert_eq!(failures.0.lock().len(), ADDRESSES_MAX);
        tokio::time::advance(FORGET).await;
        assert_eq!(failures.note(address(u32::MAX)).wait, Duration::ZERO);
    }
}
