//! Which tile a product of matrices is computed in, and into how many parts of k it is split so that the device is full.
//!
//! A model of the time decides, not measurements: blocks run in waves, one to a multiprocessor; a block takes as long as its steps of k, each
//! of which costs its multiplications and some latency; parts have to be added up afterwards. The sums of parts are always added in the
//! same order, so results do not differ from run to run.

use crate::Target;

/// Whether a block uses the units for matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Units {
    /// One number at a time.
    Plain,
    /// Whole matrices.
    Tensor,
}

/// A size of tiles: `Tile` in `tile.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// The end of a kernel's name.
    pub(super) name: &'static str,
    pub(super) m: u32,
    pub(super) n: u32,
    /// Bytes of one line of k.
    k_bytes: u32,
    pub(super) threads: u32,
    stages: u32,
    /// Multiplications per clock of one multiprocessor, compared to what it can do at best, in percent.
    efficiency: u64,
}

const LARGE: Tile =
    Tile { name: "large", m: 128, n: 128, k_bytes: 64, threads: 256, stages: 3, efficiency: 100 };
pub(super) const MEDIUM: Tile =
    Tile { name: "medium", m: 64, n: 64, k_bytes: 64, threads: 128, stages: 4, efficiency: 70 };
const SMALL: Tile =
    Tile { name: "small", m: 32, n: 32, k_bytes: 128, threads: 128, stages: 4, efficiency: 40 };

/// The product that is to be computed, once for each of `z` matrices or groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) z: u32,
    pub(super) element_bytes: u32,
    pub(super) units: Units,
}

/// How it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) tile: Tile,
    /// What one block takes of k, a multiple of the tile's; `parts` of them.
    pub(super) k_part: u32,
    pub(super) parts: u32,
}

/// Sums of parts that may wait in memory.
const WORKSPACE_BYTES_MAX: u64 = 64 << 20;
/// Parts that k is split into at most.
const PARTS_MAX: u32 = 32;
/// Steps of k below which a part is not worth its beginning and end.
const STEPS_MIN: u32 = 4;
/// Clocks that a block takes besides its steps, a step besides its multiplications, and a second launch.
const BLOCK_CLOCKS: u64 = 1_500;
const STEP_CLOCKS: u64 = 60;
const LAUNCH_CLOCKS: u64 = 3_000;
/// Bytes per clock that a device's memory gives to each multiprocessor.
const BYTES_PER_CLOCK: u64 = 16;

impl Units {
    /// The tiles that there are kernels for.
    pub(super) fn tiles(self, element_bytes: u32) -> &'static [Tile] {
        match (self, element_bytes) {
            (Self::Plain, 2) => &[MEDIUM],
            _ => &[LARGE, MEDIUM, SMALL],
        }
    }
}

impl Problem {
    /// The best of the tiles that there are, for this device.
    pub(super) fn choose(&self, tiles: &[Tile], target: &Target) -> Option<Choice> {
        let fitting = tiles
            .iter()
            .filter(|tile| tile.shared_bytes(self.element_bytes, true) <= target.shared_bytes_max);
        let choices = fitting.flat_map(|tile| (1..=PARTS_MAX).filter_map(|parts| self.split(*tile, parts)));
        choices.min_by_key(|choice| self.clocks(choice, target))
    }

    /// k in this many parts, if each has something to do and their sums have room.
    fn split(&self, tile: Tile, parts: u32) -> Option<Choice> {
        let step = tile.k(self.element_bytes);
        let steps = self.k.div_ceil(step).max(1);
        let steps_part = steps.div_ceil(parts);
        let choice = Choice { tile, k_part: steps_part * step, parts };
        let worth_it = parts == 1
            || steps_part >= STEPS_MIN
                && steps.div_ceil(steps_part) == parts
                && self.workspace_bytes(&choice) <= WORKSPACE_BYTES_MAX;
        worth_it.then_some(choice)
    }

    /// Memory for the sums of parts.
    pub(super) fn workspace_bytes(&self, choice: &Choice) -> u64 {
        if choice.parts == 1 { 0 } else { self.outputs() * u64::from(choice.parts) * 4 }
    }

    /// Elements that come out.
    pub(super) fn outputs(&self) -> u64 {
        u64::from(self.m) * u64::from(self.n) * u64::from(self.z)
    }

    fn clocks(&self, choice: &Choice, target: &Target) -> u64 {
        let tile = choice.tile;
        let multiprocessors = u64::from(target.multiprocessors.max(1));
        let tiles =
            u64::from(self.m.div_ceil(tile.m)) * u64::from(self.n.div_ceil(tile.n)) * u64::from(self.z);
        let waves = (tiles * u64::from(choice.parts)).div_ceil(multiprocessors);
        let k = u64::from(choice.k_part.min(self.k.max(1)));
        let per_clock = match (self.units, self.element_bytes) {
            (Units::Plain, _) => 128,
            (Units::Tensor, 4) => 512,
            (Units::Tensor, _) => 1_024,
        };
        let multiplications = u64::from(tile.m) * u64::from(tile.n) * k;
        let steps = k.div_ceil(u64::from(tile.k(self.element_bytes)));
        let block =
            BLOCK_CLOCKS + steps * STEP_CLOCKS + multiplications * 100 / (per_clock * tile.efficiency);
        let adding = if choice.parts == 1 {
            0
        } else {
            LAUNCH_CLOCKS + 2 * self.workspace_bytes(choice) / (BYTES_PER_CLOCK * multiprocessors)
        };
        waves * block + adding
    }
}

impl Tile {
    /// Elements of k in one step.
    fn k(&self, element_bytes: u32) -> u32 {
        self.k_bytes / element_bytes
    }

    /// Shared memory for the ring of tiles of A and B: `Layout` in `tile.cuh`. Lines of A run along k; those of B do or do not.
    pub(super) fn shared_bytes(&self, element_bytes: u32, b_along_k: bool) -> u32 {
        self.stages
            * (self.tile_bytes(self.m, element_bytes, true)
                + self.tile_bytes(self.n, element_bytes, b_along_k))
    }

    /// The same where lines of A run across k.
    pub(super) fn shared_bytes_transposed(&self, element_bytes: u32, b_along_k: bool) -> u32 {
        self.stages
            * (self.tile_bytes(self.m, element_bytes, false)
                + self.tile_bytes(self.n, element_bytes, b_along_k))
    }

    fn tile_bytes(&self, across: u32, element_bytes: u32, along_k: bool) -> u32 {
        let k = self.k(element_bytes);
        let (lines, length) = if along_k { (across, k) } else { (k, across) };
        let padding = if element_bytes == 2 || !along_k { 8 } else { 4 };
        lines * (length + padding) * element_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TILES: [Tile; 3] = [LARGE, MEDIUM, SMALL];

    fn choose(m: u32, n: u32, k: u32) -> Choice {
        let problem = Problem { m, n, k, z: 1, element_bytes: 4, units: Units::Tensor };
        problem.choose(&TILES, &Target::H200).unwrap()
    }

    #[test]
    fn large_products_take_large_tiles_and_no_parts() {
        let choice = choose(4096, 4096, 1024);
        assert_eq!((choice.tile.name, choice.parts), ("large", 1));
    }

    #[test]
    fn few_outputs_of_many_products_are_split_so_that_the_device_is_full() {
        // The last 3 x 3 convolution of ResNet-50 on one image.
        let choice = choose(512, 49, 4608);
        let blocks = 512_u32.div_ceil(choice.tile.m) * 49_u32.div_ceil(choice.tile.n) * choice.parts;
        assert!(choice.parts > 1 && blocks >= 64, "{choice:?}");
        assert!(choice.k_part * (choice.parts - 1) < 4608 && choice.k_part * choice.parts >= 4608);
    }

    #[test]
    fn a_tile_that_does_not_fit_the_device_is_not_chosen() {
        let small = Target { shared_bytes_max: 48 << 10, ..Target::H200 };
        let problem = Problem { m: 4096, n: 4096, k: 64, z: 1, element_bytes: 4, units: Units::Plain };
        assert_eq!(problem.choose(&TILES, &small).unwrap().tile.name, "medium");
    }

    #[test]
    fn shared_memory_is_what_the_kernels_declare() {
        // Large, f32: three stages of 128 lines of 20 and 16 lines of 136.
        assert_eq!(LARGE.shared_bytes(4, false), 3 * (128 * 20 + 16 * 136) * 4);
        // Small, halves: four stages of 32 lines of 72 and 64 lines of 40.
        assert_eq!(SMALL.shared_bytes(2, false), 4 * (32 * 72 + 64 * 40) * 2);
    }

    proptest! {
        #[test]
        fn parts_cover_all_of_k_once_and_fit_their_workspace(
            (m, n, k, z) in (1_u32..3_000, 1_u32..3_000, 1_u32..9_000, 1_u32..64),
            halves in any::<bool>(),
            multiprocessors in 1_u32..200,
        ) {
            let problem = Problem { m, n, k, z, element_bytes: if halves { 2 } else { 4 }, units: Units::Tensor };
            let choice = problem.choose(&TILES, &Target { multiprocessors, ..Target::H200 }).unwrap();
            prop_assert!(choice.k_part * (choice.parts - 1) < k && choice.k_part * choice.parts >= k);
            // Parts begin where 16 bytes can be read at once if lines can.
            prop_assert_eq!(choice.k_part % (16 / problem.element_bytes), 0);
            prop_assert!(choice.parts <= PARTS_MAX && problem.workspace_bytes(&choice) <= WORKSPACE_BYTES_MAX);
            prop_assert!(choice.tile.shared_bytes(problem.element_bytes, true) <= Target::H200.shared_bytes_max);
        }
    }
}
