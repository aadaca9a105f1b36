//! Compute precision of models on a GPU.

use crate::ElementType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Compute precision of an fp32 model on a GPU. Accumulation, inputs and outputs are always fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// fp32 throughout.
    Fp32,
    /// Stored as fp32. Matrix products and convolutions round their factors to 10 bits of fraction
    /// and use the device's matrix units (tensor cores).
    #[default]
    Tf32,
    /// Stored as binary16: half the memory, numbers up to 65504.
    Fp16,
    /// Stored as bfloat16: half the memory, numbers as large as fp32's, 8 bits of fraction.
    Bf16,
}

impl Precision {
    /// All precisions, from the most exact to the least.
    pub const ALL: [Self; 4] = [Self::Fp32, Self::Tf32, Self::Fp16, Self::Bf16];

    /// The name of the precision.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        }
    }

    /// Element type of stored weights and intermediate results.
    #[must_use]
    pub fn storage(self) -> ElementType {
        match self {
            Self::Fp32 | Self::Tf32 => ElementType::Fp32,
            Self::Fp16 => ElementType::Fp16,
            Self::Bf16 => ElementType::Bf16,
        }
    }

    /// Whether the precision is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|precision| precision.as_str() == text);
        found.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}
