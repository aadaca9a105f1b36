//! Platforms: kinds of devices that take models in the same form.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Platform of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// The node's CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A simulated device, for tests and for experiments with the scheduler.
    Fake,
}

impl Platform {
    /// All platforms.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Cuda, Self::Fake];

    /// The name of the platform.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Fake => "fake",
        }
    }

    /// Whether a model's first run overlaps with its load: the run follows the arriving weights.
    #[must_use]
    pub fn computes_behind_loads(self) -> bool {
        self == Self::Cuda
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of platforms; by default all. Written as a list of names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Platform>", into = "Vec<Platform>")]
pub struct Platforms(u8);

impl Platforms {
    /// The set of all platforms.
    pub const ALL: Self = Self(0b111);
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set with only `platform`.
    #[must_use]
    pub fn only(platform: Platform) -> Self {
        Self(bit(platform))
    }

    /// Whether the set contains `platform`.
    #[must_use]
    pub fn contains(self, platform: Platform) -> bool {
        self.0 & bit(platform) != 0
    }

    /// The intersection with `others`.
    #[must_use]
    pub fn within(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// The difference: platforms that are not in `others`.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether the set has all platforms.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::ALL
    }

    /// The platforms of the set, in the order of [`Platform::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Platform> {
        Platform::ALL.into_iter().filter(move |platform| self.contains(*platform))
    }
}

fn bit(platform: Platform) -> u8 {
    1 << platform as u8
}

impl Default for Platforms {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<Platform> for Platforms {
    fn from_iter<All: IntoIterator<Item = Platform>>(all: All) -> Self {
        Self(all.into_iter().map(bit).fold(0, std::ops::BitOr::bitor))
    }
}

impl From<Vec<Platform>> for Platforms {
    fn from(all: Vec<Platform>) -> Self {
        all.into_iter().collect()
    }
}

impl From<Platforms> for Vec<Platform> {
    fn from(all: Platforms) -> Self {
        all.iter().collect()
    }
}

impl fmt::Debug for Platforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Devices on which the owner of a model allows it to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// The device with the earliest expected completion.
    #[default]
    Any,
    /// Only CPUs.
    Cpu,
    /// Only GPUs. A model that no GPU can run is rejected at push.
    Cuda,
    /// Only simulated devices.
    Fake,
}

impl DeviceChoice {
    /// The allowed platforms.
    #[must_use]
    pub fn platforms(self) -> Platforms {
        match self {
            Self::Any => Platforms::ALL,
            Self::Cpu => Platforms::only(Platform::Cpu),
            Self::Cuda => Platforms::only(Platform::Cuda),
            Self::Fake => Platforms::only(Platform::Fake),
        }
    }

    /// Whether all platforms are allowed.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Fake => "fake",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_a_set_and_a_list_of_names() {
        assert_eq!(Platform::ALL.into_iter().collect::<Platforms>(), Platforms::ALL);
        assert!(Platforms::NONE.is_empty() && Platforms::default().is_all());
        let two: Platforms = [Platform::Fake, Platform::Cpu, Platform::Fake].into_iter().collect();
        assert_eq!(serde_json::to_string(&two).unwrap(), r#"["cpu","fake"]"#);
        assert_eq!(serde_json::from_str::<Platforms>(r#"["fake","cpu"]"#).unwrap(), two);
        assert_eq!(two.without(Platforms::only(Platform::Cpu)), Platforms::only(Platform::Fake));
        assert_eq!(two.within(DeviceChoice::Cuda.platforms()), Platforms::NONE);
        assert!(!two.contains(Platform::Cuda) && two.contains(Platform::Fake));
    }
}
