//! Which chains have kernels, and which are to have them next. Plain data: no compiler, and no device.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_kernels::Chain;

/// Kernels that are kept for later programs; those of programs that are there stay with them. A model has some tens of distinct chains.
const KERNELS_MAX: usize = 512;
/// Chains that wait for the compiler. What finds no place among them asks again when it runs next.
const QUEUE_LEN_MAX: usize = 256;
/// How long one compilation may take. They take some tens of milliseconds.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(30);

/// What there is for a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found<F> {
    /// Its kernel.
    Kernel(F),
    /// Not yet.
    Pending,
    /// There will be none.
    Refused,
}

/// The chains that were asked for. `F` is a kernel.
#[derive(Debug)]
pub(super) struct Table<F> {
    entries: HashMap<Arc<Chain>, Entry<F>>,
    queue: VecDeque<Arc<Chain>>,
    /// Kernels that had to make room, until somebody lets go of them outside a lock.
    forgotten: Vec<F>,
    compiling_since: Option<Instant>,
    /// How many were compiled, or refused.
    compiled: u64,
    /// Nothing is compiled any more.
    has_ended: bool,
    /// Counts what was asked, to tell what was so last.
    asked: u64,
}

#[derive(Debug)]
struct Entry<F> {
    found: Found<F>,
    asked: u64,
}

impl<F> Default for Table<F> {
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

impl<F: Clone> Table<F> {
    /// What there is for a chain, which is put into the queue if nobody has asked for it.
    pub(super) fn ask(&mut self, chain: &Arc<Chain>) -> Found<F> {
        self.asked += 1;
        if let Some(entry) = self.entries.get_mut(chain) {
            entry.asked = self.asked;
            return entry.found.clone();
        }
        if self.has_ended {
            return Found::Refused;
        }
        if self.queue.len() < QUEUE_LEN_MAX && self.make_room() {
            self.queue.push_back(Arc::clone(chain));
            self.entries.insert(Arc::clone(chain), Entry { found: Found::Pending, asked: self.asked });
        }
        Found::Pending
    }

    /// The kernels that had to make room. To let go of one may take as long as the device works.
    pub(super) fn forgotten(&mut self) -> Vec<F> {
        std::mem::take(&mut self.forgotten)
    }

    /// What to compile next, which begins now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Arc<Chain>> {
        if self.has_ended {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.compiling_since = Some(now);
        Some(next)
    }

    /// What has come of it: a kernel, or none.
    pub(super) fn done(&mut self, chain: &Arc<Chain>, kernel: Option<F>) {
        self.compiling_since = None;
        self.compiled += 1;
        if let (Some(entry), false) = (self.entries.get_mut(chain), self.has_ended) {
            entry.found = kernel.map_or(Found::Refused, Found::Kernel);
        }
    }

    /// Compile nothing more, if the compiler has not come back for too long. Gives whether that is news.
    pub(super) fn end_if_stuck(&mut self, now: Instant) -> bool {
        let is_stuck = self.is_stuck(now) && !self.has_ended;
        if is_stuck {
            self.end();
        }
        is_stuck
    }

    /// Whether the compiler has not come back for too long.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.compiling_since.is_some_and(|since| now.saturating_duration_since(since) > COMPILE_TIME_MAX)
    }

    /// Compile nothing more: what waits is refused.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
        self.queue.clear();
        for entry in self.entries.values_mut() {
            if matches!(entry.found, Found::Pending) {
                entry.found = Found::Refused;
            }
        }
    }

    /// How many have come of the compiler, whatever came of them.
    pub(super) fn compiled(&self) -> u64 {
        self.compiled
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Forget what nobody has asked for longest, if there is no room for one more. Gives whether there is then.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < KERNELS_MAX {
            return true;
        }
        let settled = self.entries.iter().filter(|(_, entry)| !matches!(entry.found, Found::Pending));
        let oldest = settled.min_by_key(|(_, entry)| entry.asked).map(|(chain, _)| Arc::clone(chain));
        let Some(entry) = oldest.and_then(|chain| self.entries.remove(&chain)) else { return false };
        if let Found::Kernel(kernel) = entry.found {
            self.forgotten.push(kernel);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_graph::{Elementwise, Instruction, Lane, Program, Scalar};
    use weir_kernels::Example;
    use weir_types::ElementType::Fp32;

    /// Like no other of another number.
    fn chain(number: usize) -> Arc<Chain> {
        let instructions = vec![Instruction::Constant(Scalar::Float(number as f32))];
        let program = Program { lane: Lane::Float, instructions };
        let op = Elementwise { program, dims: vec![1], strides: Vec::new() };
        Example { op, inputs: Vec::new(), output: Fp32 }.chain().unwrap()
    }

    fn compile(table: &mut Table<usize>, kernel: Option<usize>) -> Arc<Chain> {
        let next = table.next(Instant::now()).unwrap();
        table.done(&next, kernel);
        next
    }

    #[test]
    fn a_chain_is_compiled_once_and_what_is_refused_stays_so() {
        let mut table = Table::default();
        assert_eq!((table.ask(&chain(1)), table.ask(&chain(1))), (Found::Pending, Found::Pending));
        assert_eq!(table.ask(&chain(2)), Found::Pending);
        assert_eq!(compile(&mut table, Some(7)), chain(1));
        assert_eq!(compile(&mut table, None), chain(2));
        assert_eq!((table.ask(&chain(1)), table.ask(&chain(2))), (Found::Kernel(7), Found::Refused));
        assert!(table.next(Instant::now()).is_none());
    }

    #[test]
    fn what_finds_no_place_in_the_queue_asks_again() {
        let mut table: Table<usize> = Table::default();
        for number in 0..=QUEUE_LEN_MAX {
            assert_eq!(table.ask(&chain(number)), Found::Pending);
        }
        assert_eq!(table.entries.len(), QUEUE_LEN_MAX);
        compile(&mut table, Some(0));
        assert_eq!(table.ask(&chain(QUEUE_LEN_MAX)), Found::Pending);
        assert_eq!(table.entries.len(), QUEUE_LEN_MAX + 1);
    }

    #[test]
    fn the_kernel_that_nobody_has_asked_for_longest_makes_room() {
        let mut table = Table::default();
        for number in 0..KERNELS_MAX {
            table.ask(&chain(number));
            compile(&mut table, Some(number));
        }
        table.ask(&chain(0));
        table.ask(&chain(KERNELS_MAX));
        assert_eq!((table.entries.len(), table.forgotten()), (KERNELS_MAX, vec![1]));
        assert_eq!(table.ask(&chain(0)), Found::Kernel(0));
        assert_eq!(table.ask(&chain(1)), Found::Pending, "it went, and is compiled again");
    }

    #[test]
    fn a_compiler_that_does_not_come_back_is_given_up() {
        let (mut table, began) = (Table::default(), Instant::now());
        table.ask(&chain(1));
        compile(&mut table, Some(1));
        let late = (table.ask(&chain(2)), table.ask(&chain(3)));
        assert_eq!(late, (Found::Pending, Found::Pending));
        let second = table.next(began).unwrap();
        assert!(!table.end_if_stuck(began + COMPILE_TIME_MAX));
        let after = began + COMPILE_TIME_MAX + Duration::from_millis(1);
        assert!(table.end_if_stuck(after) && !table.end_if_stuck(after), "told once");
        let found = [1, 2, 3, 4].map(|number| table.ask(&chain(number)));
        assert_eq!(found, [Found::Kernel(1), Found::Refused, Found::Refused, Found::Refused]);
        // What comes back in the end is not taken, and nothing more is begun.
        table.done(&second, Some(2));
        assert_eq!(table.ask(&chain(2)), Found::Refused);
        assert!(table.next(after).is_none());
    }
}
