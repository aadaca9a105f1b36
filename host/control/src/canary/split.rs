//! The version that one call uses, while a canary gets a share of the calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_types::api::Canary;
use weir_types::{ContentHash, Version};

/// Calls in a row of which the canary gets exactly its percentage.
const BLOCK_LEN: u64 = 100;

/// The split of a name's calls between the active version and its canary. Lives as long as the
/// canary keeps its share.
#[derive(Debug)]
pub(crate) struct Split {
    canary: Canary,
    sampler: Sampler,
}

/// Chooses a percentage of calls: pseudo-randomly, and exactly in every hundred calls of this node.
#[derive(Debug)]
pub(crate) struct Sampler {
    percent: u8,
    /// Differs between nodes and samplers, so that their sequences differ.
    seed: u64,
    /// Calls so far on this node.
    calls: AtomicU64,
}

impl Sampler {
    pub(crate) fn new(percent: u8) -> Self {
        Self { percent, seed: rand::random(), calls: AtomicU64::new(0) }
    }

    /// Whether the next call is chosen.
    pub(crate) fn next(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        place(self.seed, call) < u64::from(self.percent)
    }
}

impl Split {
    fn new(canary: Canary) -> Self {
        Self { canary, sampler: Sampler::new(canary.percent) }
    }

    /// Continues the split before a change, if the change has left the canary and its share alone.
    pub(crate) fn after(canary: Option<Canary>, before: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        let canary = canary?;
        let same = before.filter(|before| before.canary == canary).cloned();
        Some(same.unwrap_or_else(|| Arc::new(Self::new(canary))))
    }

    /// The canary, if one call of `name` uses it. All calls with the same `key` use the same version.
    pub(crate) fn choose(&self, name: &str, key: Option<&[u8]>) -> Option<Version> {
        let is_chosen = key.map_or_else(|| self.sampler.next(), |key| self.keeps(name, key));
        is_chosen.then_some(self.canary.version)
    }

    /// Whether the canary gets the calls of a client with this key. More keys reach the canary when
    /// its share grows, and none leaves it.
    fn keeps(&self, name: &str, key: &[u8]) -> bool {
        let salted = [name.as_bytes(), &self.canary.version.0.to_le_bytes(), key].concat();
        ContentHash::from_content(&salted).prefix() % BLOCK_LEN < u64::from(self.canary.percent)
    }
}

/// The place of a call in a pseudo-random order of its block: each of 0 to 99 once per block.
fn place(seed: u64, call: u64) -> u64 {
    let key = mix(seed ^ mix(call / BLOCK_LEN));
    // A permutation of 0 to 127, repeated until the result is below 100: that permutes 0 to 99.
    let mut place = permute(key, call % BLOCK_LEN);
    while place >= BLOCK_LEN {
        place = permute(key, place);
    }
    place
}

/// A permutation of the numbers from 0 to 127.
fn permute(mut key: u64, mut place: u64) -> u64 {
    for shift in [3, 4, 2] {
        place = place.wrapping_mul(key | 1).wrapping_add(key >> 7) & 127;
        place ^= place >> shift;
        key = key.rotate_left(17);
    }
    place
}

/// The finaliser of splitmix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(percent: u8) -> Split {
        let version = Version(2);
        Split::new(Canary { version, percent, started_at_ms: 0, promote_after_ms: None })
    }

    proptest! {
        #[test]
        fn canary_gets_its_share_of_every_hundred_calls(seed: u64, percent in 1..=99_u8, block in 0..1_000_u64) {
            let first = block * BLOCK_LEN;
            let places = (first..first + BLOCK_LEN).map(|call| place(seed, call));
            let share = places.filter(|place| *place < u64::from(percent)).count();
            prop_assert_eq!(share, usize::from(percent));
        }

        #[test]
        fn key_stays_with_the_canary_as_its_share_grows(key: Vec<u8>, percent in 1..99_u8) {
            let stays = !split(percent).keeps("f", &key) || split(percent + 1).keeps("f", &key);
            prop_assert!(stays);
        }
    }

    #[test]
    fn canary_of_ten_percent_gets_two_thousand_of_twenty_thousand_calls() {
        let split = split(10);
        assert_eq!((0..20_000).filter(|_| split.choose("f", None).is_some()).count(), 2_000);
    }

    /// A client that sends its calls in a pattern must not meet the canary in that pattern.
    #[test]
    fn every_kind_of_call_gets_its_share_of_a_pattern() {
        for period in [2, 3, 4, 5, 7, 10, 20, 25, 50, 100] {
            for phase in 0..period {
                let calls = (phase..phase + period * 10_000).step_by(period);
                let canary = calls.filter(|call| place(1, *call as u64) < 10).count();
                assert!((850..1_150).contains(&canary), "{canary} of 10000, every {period}");
            }
        }
    }

    #[test]
    fn keys_are_spread_over_both_versions() {
        let split = split(10);
        let canary = (0..20_000).filter(|n| split.keeps("f", format!("user-{n}").as_bytes())).count();
        assert!((1_900..2_100).contains(&canary), "{canary} of 20000 keys");
    }
}
