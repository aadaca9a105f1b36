//! Causes of the cold starts of functions and models.

use std::sync::atomic::{AtomicU64, Ordering};

/// The part that a call of a function had to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionColdStart {
    /// The component was compiled, because the node had no usable machine code.
    Compile,
    /// The machine code of the component was read from disk.
    Component,
    /// The function reuses instances, and had none.
    Instance,
    /// The function reuses instances, and all of them were running calls.
    ScaledOut,
    /// A model was loaded into device memory.
    Model(ModelColdStart),
}

/// The load of a model that a call had to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelColdStart {
    /// Why the model was not in the memory of the device.
    pub reason: LoadReason,
    /// Where most of its weights came from.
    pub from: LoadSource,
}

/// Why a model was not in the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadReason {
    /// No device of the node had loaded it since the start of the node.
    First,
    /// The device had loaded it earlier: it was evicted or unloaded, or lost with the device.
    Evicted,
    /// Only other devices of the node had loaded it.
    ScaledOut,
}

/// Storage tier of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadSource {
    /// The page cache of the system, or the pinned cache of a device.
    Memory,
    /// The disk of the node.
    Disk,
    /// The object store of the cluster.
    ObjectStore,
}

impl LoadReason {
    const ALL: [Self; 3] = [Self::First, Self::Evicted, Self::ScaledOut];
}

impl LoadSource {
    const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::ObjectStore];

    /// The tier with its name in profiles.
    #[must_use]
    pub fn from_tier(name: &str) -> Self {
        match name {
            "memory" => Self::Memory,
            "object-store" => Self::ObjectStore,
            _ => Self::Disk,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::ObjectStore => "object-store",
        }
    }
}

impl ModelColdStart {
    /// All values, in the order of [`Self::index`].
    pub(super) fn all() -> impl Iterator<Item = Self> {
        LoadReason::ALL
            .into_iter()
            .flat_map(|reason| LoadSource::ALL.into_iter().map(move |from| Self { reason, from }))
    }

    fn index(self) -> usize {
        self.reason as usize * LoadSource::ALL.len() + self.from as usize
    }

    /// Values of the labels `cause` and `from`.
    pub(super) fn labels(self) -> (&'static str, &'static str) {
        let cause = match self.reason {
            LoadReason::First => "model",
            LoadReason::Evicted => "model-evicted",
            LoadReason::ScaledOut => "model-scaled-out",
        };
        (cause, self.from.as_str())
    }
}

impl FunctionColdStart {
    /// All values.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let others = [Self::Compile, Self::Component, Self::Instance, Self::ScaledOut];
        others.into_iter().chain(ModelColdStart::all().map(Self::Model))
    }

    /// Values of the labels `cause` and `from`.
    pub(super) fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Compile => ("compile", ""),
            Self::Component => ("component", ""),
            Self::Instance => ("instance", ""),
            Self::ScaledOut => ("scaled-out", ""),
            Self::Model(model) => model.labels(),
        }
    }
}

/// Cold starts of one version of a model.
#[derive(Debug, Default)]
pub(super) struct ModelColdStarts([AtomicU64; LoadReason::ALL.len() * LoadSource::ALL.len()]);

impl ModelColdStarts {
    pub(super) fn add(&self, cold_start: ModelColdStart) {
        if let Some(count) = self.0.get(cold_start.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts that are not zero.
    pub(super) fn counts(&self) -> impl Iterator<Item = (ModelColdStart, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        ModelColdStart::all().zip(counts).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cold_start_of_a_model_has_its_own_count() {
        let starts = ModelColdStarts::default();
        for (cold_start, times) in ModelColdStart::all().zip(1..) {
            (0..times).for_each(|_| starts.add(cold_start));
        }
        let counts: Vec<u64> = starts.counts().map(|(_, count)| count).collect();
        assert_eq!(counts, (1..=9).collect::<Vec<_>>());
        let labels = FunctionColdStart::all().map(|start| format!("{:?}", start.labels()));
        let different: std::collections::BTreeSet<_> = labels.collect();
        assert_eq!(different.len(), 13, "{different:?}");
    }
}
