//! Checks of the messages between nodes with arbitrary bytes, for fuzz targets and for tests without
//! a fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

use super::ActivityReport;
use super::members::Member;
use crate::ForwardGrant;
use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_call::Objective;
use weir_types::TenantId;

/// Reads or refuses bytes as the grant of a forwarded call, and as the records of a member.
pub fn membership(bytes: &[u8]) {
    if let Some(grant) = round_trip::<ForwardGrant>(bytes) {
        let _ = ForwardGrant::objective(Some(&grant), Objective::default());
    }
    round_trip::<Member>(bytes);
    if let Some(report) = round_trip::<ActivityReport>(bytes) {
        for device in report.devices {
            let _ = device.status(&TenantId::default());
        }
    }
}

/// A value has the same text when it is written and read again.
fn round_trip<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let value = serde_json::from_slice::<T>(bytes).ok()?;
    let text = serde_json::to_vec(&value).expect("it was JSON before");
    let again = serde_json::from_slice::<T>(&text).expect("it is JSON");
    assert_eq!(serde_json::to_vec(&again).expect("it was JSON before"), text);
    Some(value)
}

#[cfg(test)]
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        seeds("cluster").iter().for_each(|seed| membership(seed));
    }

    proptest! {
        #[test]
        fn mutated_messages_are_read_or_refused(bytes in mutated("cluster")) {
            membership(&bytes);
        }
    }
}
