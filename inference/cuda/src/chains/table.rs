//! Table of chains: compiled kernels, and the queue of the compiler. Plain data, without a compiler
//! or a device.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_kernels::Chain;

/// Maximum number of entries kept for later programs. Bound programs keep their kernels after an
/// eviction. A model has tens of distinct chains.
const KERNELS_MAX: usize = 512;
/// Maximum length of the compiler's queue. A chain that does not fit is requested again by the next
/// run.
const QUEUE_LEN_MAX: usize = 256;
/// Maximum time of one compilation. A typical compilation takes tens of milliseconds.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(30);

/// State of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChainState<F> {
    /// The compiled kernel.
    Kernel(F),
    /// The compilation is pending.
    Pending,
    /// The chain stays interpreted.
    Refused,
}

/// Requested chains. `F` is the type of a kernel.
#[derive(Debug)]
pub(super) struct ChainTable<F> {
    entries: HashMap<Arc<Chain>, ChainEntry<F>>,
    queue: VecDeque<Arc<Chain>>,
    /// Evicted kernels, kept until the caller drops them without holding a lock.
    forgotten: Vec<F>,
    compiling_since: Option<Instant>,
    /// Number of finished compilations, including failures.
    compiled: u64,
    /// The table accepts no more compilations.
    has_ended: bool,
    /// Number of requests, which serves as the clock of the LRU eviction.
    asked: u64,
}

#[derive(Debug)]
struct ChainEntry<F> {
    found: ChainState<F>,
    asked: u64,
}

impl<F> Default for ChainTable<F> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            queue: VecDeque::new(),
            forgotten: Vec::new(),
            compiling_since: None,
            compiled: 0,
            has_ended: false,
            asked: 0,
        }
    }
}

impl<F: Clone> ChainTable<F> {
    /// Returns the state of a chain, and queues the chain on its first request.
    pub(super) fn ask(&mut self, chain: &Arc<Chain>) -> ChainState<F> {
        self.asked += 1;
        if let Some(entry) = self.entries.get_mut(chain) {
            entry.asked = self.asked;
            return entry.found.clone();
        }
        if self.has_ended {
            return ChainState::Refused;
        }
        if self.queue.len() < QUEUE_LEN_MAX && self.make_room() {
            self.queue.push_back(chain.clone());
            self.entries.insert(chain.clone(), ChainEntry { found: ChainState::Pending, asked: self.asked });
        }
        ChainState::Pending
    }

    /// Takes the evicted kernels. Dropping a kernel can block until the device is idle.
    pub(super) fn forgotten(&mut self) -> Vec<F> {
        std::mem::take(&mut self.forgotten)
    }

    /// Takes the next chain from the queue, and starts the clock of its compilation.
    pub(super) fn next(&mut self, now: Instant) -> Option<Arc<Chain>> {
        if self.has_ended {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.compiling_since = Some(now);
        Some(next)
    }

    /// Records the result of a compilation: a kernel, or `None` for a failure.
    pub(super) fn done(&mut self, chain: &Arc<Chain>, kernel: Option<F>) {
        self.compiling_since = None;
        self.compiled += 1;
        if let (Some(entry), false) = (self.entries.get_mut(chain), self.has_ended) {
            entry.found = kernel.map_or(ChainState::Refused, ChainState::Kernel);
        }
    }

    /// Ends the table if the current compilation exceeds the time limit. Returns whether this call
    /// ended the table.
    pub(super) fn end_if_stuck(&mut self, now: Instant) -> bool {
        let is_stuck = self.is_stuck(now) && !self.has_ended;
        if is_stuck {
            self.end();
        }
        is_stuck
    }

    /// Returns whether the current compilation exceeds the time limit.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.compiling_since.is_some_and(|since| now.saturating_duration_since(since) > COMPILE_TIME_MAX)
    }

    /// Ends the table. Pending chains stay interpreted.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
        self.queue.clear();
        for entry in self.entries.values_mut() {
            if matches!(entry.found, ChainState::Pending) {
                entry.found = ChainState::Refused;
            }
        }
    }

    /// Returns the number of finished compilations, including failures.
    pub(super) fn compiled(&self) -> u64 {
        self.compiled
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Evicts the least recently requested entry if the table is full. Returns whether there is
    /// room for one more entry.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < KERNELS_MAX {
            return true;
        }
        let settled = self.entries.iter().filter(|(_, entry)| !matches!(entry.found, ChainState::Pending));
        let oldest = settled.min_by_key(|(_, entry)| entry.asked).map(|(chain, _)| chain.clone());
        let Some(entry) = oldest.and_then(|chain| self.entries.remove(&chain)) else { return false };
        if let ChainState::Kernel(kernel) = entry.found {
            self.forgotten.push(kernel);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_graph::{Elementwise, ElementwiseProgram, Instruction, NumberType, Scalar};
    use weir_kernels::Example;
    use weir_types::ElementType::Fp32;

    /// Returns a chain that is unique to this number.
    fn chain(number: usize) -> Arc<Chain> {
        let instructions = vec![Instruction::Constant(Scalar::Float(number as f32))];
        let program = ElementwiseProgram { lane: NumberType::Float, instructions };
        let op = Elementwise { program, dims: vec![1], strides: Vec::new() };
        Example { op, inputs: Vec::new(), output: Fp32 }.chain().unwrap()
    }

    fn compile(table: &mut ChainTable<usize>, kernel: Option<usize>) -> Arc<Chain> {
        let next = table.next(Instant::now()).unwrap();
        table.done(&next, kernel);
        next
    }

    #[test]
    fn chain_is_compiled_once_and_refusal_is_permanent() {
        let mut table = ChainTable::default();
        assert_eq!((table.ask(&chain(1)), table.ask(&chain(1))), (ChainState::Pending, ChainState::Pending));
        assert_eq!(table.ask(&chain(2)), ChainState::Pending);
        assert_eq!(compile(&mut table, Some(7)), chain(1));
        assert_eq!(compile(&mut table, None), chain(2));
        assert_eq!(
            (table.ask(&chain(1)), table.ask(&chain(2))),
            (ChainState::Kernel(7), ChainState::Refused)
        );
        assert!(table.next(Instant::now()).is_none());
    }

    #[test]
    fn full_queue_accepts_chain_on_a_later_request() {
        let mut table: ChainTable<usize> = ChainTable::default();
        for number in 0..=QUEUE_LEN_MAX {
            assert_eq!(table.ask(&chain(number)), ChainState::Pending);
        }
        assert_eq!(table.entries.len(), QUEUE_LEN_MAX);
        compile(&mut table, Some(0));
        assert_eq!(table.ask(&chain(QUEUE_LEN_MAX)), ChainState::Pending);
        assert_eq!(table.entries.len(), QUEUE_LEN_MAX + 1);
    }

    #[test]
    fn least_recently_requested_kernel_is_evicted() {
        let mut table = ChainTable::default();
        for number in 0..KERNELS_MAX {
            table.ask(&chain(number));
            compile(&mut table, Some(number));
        }
        table.ask(&chain(0));
        table.ask(&chain(KERNELS_MAX));
        assert_eq!((table.entries.len(), table.forgotten()), (KERNELS_MAX, vec![1]));
        assert_eq!(table.ask(&chain(0)), ChainState::Kernel(0));
        assert_eq!(table.ask(&chain(1)), ChainState::Pending, "it went, and is compiled again");
    }

    #[test]
    fn hung_compiler_is_abandoned_after_timeout() {
        let mut table = ChainTable::default();
        let began = Instant::now();
        table.ask(&chain(1));
        compile(&mut table, Some(1));
        let late = (table.ask(&chain(2)), table.ask(&chain(3)));
        assert_eq!(late, (ChainState::Pending, ChainState::Pending));
        let second = table.next(began).unwrap();
        assert!(!table.end_if_stuck(began + COMPILE_TIME_MAX));
        let after = began + COMPILE_TIME_MAX + Duration::from_millis(1);
        assert!(table.end_if_stuck(after) && !table.end_if_stuck(after), "told once");
        let found = [1, 2, 3, 4].map(|number| table.ask(&chain(number)));
        assert_eq!(
            found,
            [ChainState::Kernel(1), ChainState::Refused, ChainState::Refused, ChainState::Refused]
        );
        // A late result is discarded, and no further compilation starts.
        table.done(&second, Some(2));
        assert_eq!(table.ask(&chain(2)), ChainState::Refused);
        assert!(table.next(after).is_none());
    }
}
