#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use super::*;
use crate::policy::OpenableModel;
use crate::view::ModelParts;
use crate::{FunctionKey, Part, PartId, TenantKey};
use proptest::prelude::*;

/// By model.
const SIZES: [u64; 6] = [4, 3, 5, 2, 6, 6];
/// The part shared by the last two models. Without sharing, these models would not fit together.
const COMMON: Part = Part { id: PartId(1), bytes: 5 };
const LOAD_NS: u64 = 7;
const CAPACITY: u64 = 9;

#[derive(Debug, Clone)]
enum TimetableStep {
    Arrive {
        models: Vec<u32>,
        run_ns: u64,
        slack_ns: u64,
        reload: bool,
    },
    /// The first entry starts and runs to its end.
    Finish,
    Cancel(usize),
}

fn step() -> impl Strategy<Value = TimetableStep> {
    let models = prop::collection::btree_set(0_u32..6, 1..3).prop_map(|models| models.into_iter().collect());
    prop_oneof![
        6 => (models, 1_u64..20, 0_u64..120, any::<bool>()).prop_map(|(models, run_ns, slack_ns, reload)| TimetableStep::Arrive { models, run_ns, slack_ns, reload }),
        2 => Just(TimetableStep::Finish),
        1 => any::<usize>().prop_map(TimetableStep::Cancel),
    ]
}

fn size(model: ModelKey) -> ModelSize {
    let bytes = SIZES[model.index()];
    ModelSize {
        bytes,
        parts: if model.index() < 4 { ModelParts::default() } else { ModelParts::new(bytes, &[COMMON]) },
    }
}

/// Bytes of these models together.
fn together<'a>(models: impl IntoIterator<Item = &'a ModelKey>) -> u64 {
    let models: Vec<usize> = models.into_iter().map(|model| model.index()).collect();
    let twice = models.contains(&4) && models.contains(&5);
    models.iter().map(|model| SIZES[*model]).sum::<u64>() - if twice { COMMON.bytes } else { 0 }
}

fn entry(invocation: u64, models: &[u32], due_at_ns: u64, run_ns: u64) -> TimetableEntry {
    let demand = |model: &u32| OpenableModel {
        model: ModelKey(*model),
        bytes: SIZES[*model as usize],
        load_time_ns: None,
        runs_on: weir_types::Platforms::ALL,
        parts: size(ModelKey(*model)).parts,
    };
    let request = PlacementRequest {
        invocation: InvocationId(invocation),
        tenant: TenantKey(0),
        function: FunctionKey(0),
        models: models.iter().map(demand).collect(),
        arrived_at_ns: 0,
        deadline_at_ns: u64::MAX,
        priority: 0,
        batch: 1,
        run_time_ns: None,
        told_ns: Default::default(),
        slo: Slo::NONE,
        inputs: Box::default(),
        batch_items_max: 0,
        is_step: false,
    };
    TimetableEntry::new(request, due_at_ns, run_ns)
}

/// A simulated device: its slots take the next entry when they become free, load missing models,
/// and evict models that no entry relies on.
struct TimetableDevice {
    now_ns: u64,
    free_at_ns: Vec<u64>,
    memory: Vec<ModelKey>,
    /// The time until which each model is used.
    used: Vec<(ModelKey, u64)>,
    /// When loading models are loaded.
    there_at_ns: std::collections::BTreeMap<ModelKey, u64>,
}

impl TimetableDevice {
    fn now(&self) -> Now {
        let last_ns = self.used.iter().map(|(_, until_ns)| *until_ns).max().unwrap_or(0);
        let mut granted: SmallVec<[(ModelKey, ModelSize, bool); 4]> = SmallVec::new();
        for (model, _) in self.used.iter().filter(|(_, until_ns)| *until_ns > self.now_ns) {
            if !granted.iter().any(|(other, ..)| other == model) {
                granted.push((*model, size(*model), false));
            }
        }
        Now {
            free_at_ns: self.free_at_ns.iter().map(|free_ns| (*free_ns).max(self.now_ns)).collect(),
            capacity_bytes: CAPACITY,
            granted,
            granted_until_ns: last_ns,
        }
    }

    fn new(slots: usize, memory: Vec<ModelKey>) -> Self {
        let (used, there_at_ns) = Default::default();
        Self { now_ns: 0, free_at_ns: vec![0; slots], memory, used, there_at_ns }
    }

    fn held(&self, model: ModelKey) -> Option<(ModelSize, u64)> {
        let there_at_ns = self.there_at_ns.get(&model).copied().unwrap_or(0);
        self.memory.contains(&model).then(|| (size(model), there_at_ns))
    }

    fn holds(&self, model: ModelKey) -> bool {
        self.memory.contains(&model)
    }

    /// Starts the first entry when a slot is free and its models have room. Returns its end.
    fn start(&mut self, table: &mut Timetable) -> (u64, TimetableEntry) {
        let slot = (0..self.free_at_ns.len()).min_by_key(|slot| self.free_at_ns[*slot]).unwrap();
        self.now_ns = self.now_ns.max(self.free_at_ns[slot]);
        let needed: Vec<_> = table.entries()[0].request.models.iter().map(|demand| demand.model).collect();
        let entry = loop {
            let now_ns = self.now_ns;
            self.used.retain(|(_, until_ns)| *until_ns > now_ns);
            let is_used = |model: &ModelKey| self.used.iter().any(|(used, _)| used == model);
            let kept = self.memory.iter().filter(|model| is_used(model) || table.counts_on(**model, 0));
            let kept: std::collections::BTreeSet<_> = kept.chain(&needed).copied().collect();
            if together(&kept) <= CAPACITY {
                self.memory.retain(|model| kept.contains(model));
                break table.take(0, |_| true, |_, _| 0);
            }
            // After an early end the next entry starts early too, and may have to wait for room.
            let end_ns = self.used.iter().map(|(_, until_ns)| *until_ns).min();
            self.now_ns = end_ns.expect("there is no room for what is used or counted on");
        };
        let missing: Vec<_> = needed.iter().copied().filter(|model| !self.memory.contains(model)).collect();
        for model in &missing {
            assert!(entry.loads.contains(model), "it counted on model {model:?}, which is not there");
        }
        let others = needed.iter().filter(|model| !missing.contains(model));
        let there_ns =
            others.filter_map(|model| self.there_at_ns.get(model)).fold(self.now_ns, |a, b| a.max(*b));
        let loaded_ns = there_ns + LOAD_NS * missing.len() as u64;
        self.memory.extend(&missing);
        self.there_at_ns.extend(missing.into_iter().map(|model| (model, loaded_ns)));
        let end_ns = loaded_ns + entry.run_ns;
        self.free_at_ns[slot] = end_ns;
        self.used.extend(needed.iter().map(|model| (*model, end_ns)));
        (end_ns, entry)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_048) })]

    /// Under any arrivals, ends and cancellations, every admitted entry finds the models that it
    /// relies on, has room for its other models, and ends by its due time.
    #[test]
    fn admitted_entries_end_by_their_due_time(
        slots in 1_usize..4,
        memory in prop::sample::subsequence((0..6).collect::<Vec<u32>>(), 0..3),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut memory: Vec<_> = memory.into_iter().map(ModelKey).collect();
        while together(&memory) > CAPACITY {
            memory.pop();
        }
        let mut device = TimetableDevice::new(slots, memory);
        let mut table = Timetable::default();
        let due = |device: &mut TimetableDevice, table: &mut Timetable| -> Result<(), TestCaseError> {
            let (end_ns, entry) = device.start(table);
            prop_assert!(end_ns <= entry.due_at_ns, "{} is over at {end_ns} instead of {}", entry.request.invocation, entry.due_at_ns);
            Ok(())
        };
        for (invocation, step) in (0..).zip(steps) {
            match step {
                TimetableStep::Arrive { models, run_ns, slack_ns, reload } => {
                    let mut entry = entry(invocation, &models, device.now_ns + run_ns + slack_ns, run_ns);
                    for model in models.into_iter().map(ModelKey) {
                        if reload || !device.holds(model) && !table.brings(model, entry.due_at_ns) {
                            entry.loads.push(model);
                            entry.load_ns += LOAD_NS;
                        }
                    }
                    let insertion = table.try_insert(&device.now(), &entry, |model| device.held(model));
                    if insertion.is_on_time && insertion.fits {
                        prop_assert!(insertion.end_at_ns <= entry.due_at_ns);
                        table.insert(insertion.at, entry);
                    }
                }
                TimetableStep::Finish if !table.is_empty() => due(&mut device, &mut table)?,
                TimetableStep::Cancel(index) if !table.is_empty() => {
                    let at = index % table.entries().len();
                    // With several slots, a cancelled load may delay the entries that relied on it.
                    if slots > 1 && !table.entries()[at].loads.is_empty() {
                        continue;
                    }
                    let memory = device.memory.clone();
                    table.take(at, |model| memory.contains(&model), |_, _| LOAD_NS);
                }
                TimetableStep::Finish | TimetableStep::Cancel(_) => {}
            }
            let work_ns: u64 = table.entries().iter().map(TimetableEntry::work_ns).sum();
            prop_assert_eq!(table.work_ns(), work_ns);
        }
        while !table.is_empty() {
            due(&mut device, &mut table)?;
        }
    }

    /// A shorter run or load never delays another entry, so an admission can be kept.
    #[test]
    fn shorter_work_never_delays_other_entries(
        works in prop::collection::vec((0_u32..4, any::<bool>(), 1_u64..30, 0_u64..30), 1..30),
        slots in 1_usize..5,
    ) {
        let mut planned_free = vec![0; slots];
        let mut real_free = vec![0; slots];
        let all = entry(0, &[0, 1, 2, 3], 0, 0);
        let new = || TimetableModels::new(&[], &all, &|_| None);
        let mut planned_models = new();
        let mut real_models = new();
        for (model, loads, run_ns, less_ns) in works {
            let mut one = entry(0, &[model], 0, run_ns);
            if loads {
                one.loads = smallvec::smallvec![ModelKey(model)];
                one.load_ns = LOAD_NS;
            }
            let planned = next(&mut planned_free, &mut planned_models, &one);
            one.run_ns = run_ns.saturating_sub(less_ns);
            let real = next(&mut real_free, &mut real_models, &one);
            prop_assert!(real.0 <= planned.0 && real.1 <= planned.1);
        }
    }
}

#[test]
fn entries_are_ordered_by_due_time_and_never_delayed_past_it() {
    let mut table = Timetable::default();
    let device = TimetableDevice::new(1, vec![ModelKey(0)]);
    let try_one = |table: &mut Timetable, invocation, due_at_ns| {
        let entry = entry(invocation, &[0], due_at_ns, 10);
        let insertion = table.try_insert(&device.now(), &entry, |model| device.held(model));
        let is_admitted = insertion.is_on_time && insertion.fits;
        if is_admitted {
            table.insert(insertion.at, entry);
        }
        (is_admitted, insertion.at, insertion.end_at_ns)
    };
    assert_eq!(try_one(&mut table, 0, 30), (true, 0, 10));
    assert_eq!(try_one(&mut table, 1, 40), (true, 1, 20));
    assert_eq!(
        try_one(&mut table, 2, 15),
        (true, 0, 10),
        "what is due first goes first, as the others have time"
    );
    assert_eq!(try_one(&mut table, 3, 16), (false, 1, 20), "too late for itself");
    assert_eq!(try_one(&mut table, 4, 29), (true, 1, 20), "they have as much time as it takes");
    assert_eq!(try_one(&mut table, 5, 38), (false, 3, 40), "and no more");
    let order: Vec<_> = table.entries().iter().map(|entry| entry.request.invocation.0).collect();
    assert_eq!(order, [2, 4, 0, 1]);
}

/// Regression test: variants of one model, each nearly as large as the device, were computed not to
/// fit together.
#[test]
fn variants_with_shared_parts_fit_side_by_side() {
    let mut table = Timetable::default();
    let mut device = TimetableDevice::new(2, vec![ModelKey(4)]);
    device.used.push((ModelKey(4), 50));
    device.free_at_ns[0] = 50;
    let mut variant = entry(0, &[5], 20, 10);
    variant.loads = smallvec::smallvec![ModelKey(5)];
    variant.load_ns = LOAD_NS;
    let insertion = table.try_insert(&device.now(), &variant, |model| device.held(model));
    assert!(insertion.fits && insertion.is_on_time, "{insertion:?}");
    table.insert(insertion.at, variant);
    let mut another = entry(1, &[0], 40, 10);
    another.loads = smallvec::smallvec![ModelKey(0)];
    another.load_ns = LOAD_NS;
    assert!(!table.try_insert(&device.now(), &another, |model| device.held(model)).fits);
}
