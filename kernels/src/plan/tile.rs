//! Choice of the tile for a matrix product, and of the number of parts of k that keeps the device
//! busy.
//!
//! A time model decides, not measurements. Blocks run in waves, one per multiprocessor. A block
//! takes as long as its steps of k; each step costs its multiplications and some latency. The sums
//! of parts must be added afterwards. They are always added in the same order, so results are
//! deterministic.

use super::float_name;
use crate::{KernelTarget, Precision};
use weir_types::ElementType;

/// Arithmetic units of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Units {
    /// Scalar units.
    Plain,
    /// Tensor cores.
    Tensor,
}

/// A tile size: `Tile` in `tile.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Suffix of the kernel's name.
    pub(super) name: &'static str,
    pub(super) m: u32,
    pub(super) n: u32,
    /// Bytes of one line of k.
    k_bytes: u32,
    pub(super) threads: u32,
    stages: u32,
    /// Multiplications per clock of one multiprocessor, in percent of its peak; measured on an H200.
    efficiency: u64,
}

const LARGE: Tile =
    Tile { name: "large", m: 128, n: 128, k_bytes: 64, threads: 256, stages: 3, efficiency: 34 };
pub(super) const MEDIUM: Tile =
    Tile { name: "medium", m: 64, n: 64, k_bytes: 64, threads: 128, stages: 4, efficiency: 22 };
const SMALL: Tile =
    Tile { name: "small", m: 32, n: 32, k_bytes: 128, threads: 128, stages: 4, efficiency: 14 };

/// Tiles for convolution with channels last on tensor cores: `WindowsLarge` and `WindowsTall` in
/// `windows.cuh`.
const WINDOWS_LARGE: Tile =
    Tile { name: "large", m: 128, n: 128, k_bytes: 64, threads: 256, stages: 4, efficiency: 50 };
const WINDOWS_TALL: Tile =
    Tile { name: "tall", m: 128, n: 64, k_bytes: 64, threads: 128, stages: 4, efficiency: 34 };

/// A product to compute, once for each of `z` matrices or groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileProblem {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) z: u32,
    pub(super) element_bytes: u32,
    pub(super) units: Units,
}

/// Chosen tile and split of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileChoice {
    pub(super) tile: Tile,
    /// Length of k per block, a multiple of the tile's step; `parts` of them cover k.
    pub(super) k_part: u32,
    pub(super) parts: u32,
}

/// Largest size of the workspace for sums of parts.
const WORKSPACE_BYTES_MAX: u64 = 64 << 20;
/// Largest number of parts of k.
const PARTS_MAX: u32 = 32;
/// Smallest number of steps of k per part; with fewer, the overhead of a part is not worth it.
const STEPS_MIN: u32 = 4;
/// Overhead in clocks of a block in addition to its steps, of a step in addition to its
/// multiplications, and of a second launch.
const BLOCK_CLOCKS: u64 = 3_000;
const STEP_CLOCKS: u64 = 100;
const LAUNCH_CLOCKS: u64 = 4_500;
/// Memory bandwidth of a device per multiprocessor, in bytes per clock.
const BYTES_PER_CLOCK: u64 = 16;

impl Units {
    /// Choose the units for products of floats of `element_bytes`.
    pub(super) fn choose(element_bytes: u32, precision: Precision, target: &KernelTarget) -> Self {
        let may_use_tensor = precision != Precision::Fp32 || element_bytes == 2;
        if target.has_tensor_units() && may_use_tensor { Self::Tensor } else { Self::Plain }
    }

    /// Part of a kernel's name for the units and the type of the floats.
    pub(super) fn kernel_name(self, element_type: ElementType) -> Result<&'static str, String> {
        Ok(match (self, element_type) {
            (Self::Plain, _) => float_name(element_type)?,
            (Self::Tensor, ElementType::Fp32) => "tf32_tensor",
            (Self::Tensor, ElementType::Fp16) => "f16_tensor",
            (Self::Tensor, _) => "bf16_tensor",
        })
    }

    /// Tiles that kernels exist for.
    pub(super) fn tiles(self, element_bytes: u32) -> &'static [Tile] {
        match (self, element_bytes) {
            (Self::Plain, 2) => &[MEDIUM],
            _ => &[LARGE, MEDIUM, SMALL],
        }
    }
}

impl Units {
    /// Tiles that kernels for convolution with channels last exist for.
    pub(super) fn window_tiles(self, element_bytes: u32) -> &'static [Tile] {
        match self {
            Self::Plain => self.tiles(element_bytes),
            Self::Tensor => &[WINDOWS_LARGE, WINDOWS_TALL, MEDIUM, SMALL],
        }
    }
}

impl TileProblem {
    /// Choose the fastest tile and split for this device.
    pub(super) fn choose(&self, tiles: &[Tile], target: &KernelTarget) -> Option<TileChoice> {
        let fitting = tiles
            .iter()
            .filter(|tile| tile.shared_bytes(self.element_bytes, true) <= target.shared_bytes_max);
        let choices = fitting.flat_map(|tile| (1..=PARTS_MAX).filter_map(|parts| self.split(*tile, parts)));
        choices.min_by_key(|choice| self.clocks(choice, target))
    }

    /// Split k into this many parts, if each part has work and the sums fit the workspace.
    fn split(&self, tile: Tile, parts: u32) -> Option<TileChoice> {
        let step = tile.k(self.element_bytes);
        let steps = self.k.div_ceil(step).max(1);
        let steps_part = steps.div_ceil(parts);
        let choice = TileChoice { tile, k_part: steps_part * step, parts };
        let worth_it = parts == 1
            || steps_part >= STEPS_MIN
                && steps.div_ceil(steps_part) == parts
                && self.workspace_bytes(&choice) <= WORKSPACE_BYTES_MAX;
        worth_it.then_some(choice)
    }

    /// Size of the workspace for the sums of parts.
    pub(super) fn workspace_bytes(&self, choice: &TileChoice) -> u64 {
        if choice.parts == 1 { 0 } else { self.outputs() * u64::from(choice.parts) * 4 }
    }

    /// Number of output elements.
    pub(super) fn outputs(&self) -> u64 {
        u64::from(self.m) * u64::from(self.n) * u64::from(self.z)
    }

    fn clocks(&self, choice: &TileChoice, target: &KernelTarget) -> u64 {
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
    /// Elements of k per step.
    fn k(&self, element_bytes: u32) -> u32 {
        self.k_bytes / element_bytes
    }

    /// Shared memory for the ring of tiles of A and B: `Layout` in `tile.cuh`. Lines of A run along
    /// k; lines of B run along k if `b_along_k`.
    pub(super) fn shared_bytes(&self, element_bytes: u32, b_along_k: bool) -> u32 {
        self.stages
            * (self.tile_bytes(self.m, element_bytes, true)
                + self.tile_bytes(self.n, element_bytes, b_along_k))
    }

    /// Shared memory for the ring of tiles, with lines of A across k.
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

    fn choose(m: u32, n: u32, k: u32) -> TileChoice {
        let problem = TileProblem { m, n, k, z: 1, element_bytes: 4, units: Units::Tensor };
        problem.choose(&TILES, &KernelTarget::H200).unwrap()
    }

    #[test]
    fn large_product_uses_large_tile_without_split() {
        let choice = choose(4096, 4096, 1024);
        assert_eq!((choice.tile.name, choice.parts), ("large", 1));
    }

    #[test]
    fn product_with_few_outputs_is_split() {
        // The last 3 x 3 convolution of ResNet-50 on one image.
        let choice = choose(512, 49, 4608);
        let blocks = 512_u32.div_ceil(choice.tile.m) * 49_u32.div_ceil(choice.tile.n) * choice.parts;
        assert!(choice.parts > 1 && blocks >= 64, "{choice:?}");
        assert!(choice.k_part * (choice.parts - 1) < 4608 && choice.k_part * choice.parts >= 4608);
    }

    #[test]
    fn tile_over_shared_memory_limit_is_not_chosen() {
        let small = KernelTarget { shared_bytes_max: 48 << 10, ..KernelTarget::H200 };
        let problem = TileProblem { m: 4096, n: 4096, k: 64, z: 1, element_bytes: 4, units: Units::Plain };
        assert_eq!(problem.choose(&TILES, &small).unwrap().tile.name, "medium");
    }

    #[test]
    fn shared_memory_matches_kernel_layout() {
        // Large, f32: three stages of 128 lines of 20 and 16 lines of 136.
        assert_eq!(LARGE.shared_bytes(4, false), 3 * (128 * 20 + 16 * 136) * 4);
        // Small, f16 or bf16: four stages of 32 lines of 72 and 64 lines of 40.
        assert_eq!(SMALL.shared_bytes(2, false), 4 * (32 * 72 + 64 * 40) * 2);
    }

    proptest! {
        #[test]
        fn parts_cover_k_and_fit_workspace(
            (m, n, k, z) in (1_u32..3_000, 1_u32..3_000, 1_u32..9_000, 1_u32..64),
            halves in any::<bool>(),
            multiprocessors in 1_u32..200,
        ) {
            let problem = TileProblem { m, n, k, z, element_bytes: if halves { 2 } else { 4 }, units: Units::Tensor };
            let choice = problem.choose(&TILES, &KernelTarget { multiprocessors, ..KernelTarget::H200 }).unwrap();
            prop_assert!(choice.k_part * (choice.parts - 1) < k && choice.k_part * choice.parts >= k);
            // Parts begin where aligned lines allow reads of 16 bytes.
            prop_assert_eq!(choice.k_part % (16 / problem.element_bytes), 0);
            prop_assert!(choice.parts <= PARTS_MAX && problem.workspace_bytes(&choice) <= WORKSPACE_BYTES_MAX);
            prop_assert!(choice.tile.shared_bytes(problem.element_bytes, true) <= KernelTarget::H200.shared_bytes_max);
        }
    }
}
