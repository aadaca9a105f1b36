//! Dynamic batching settings of a model.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How waiting requests for a model are batched. By default, the node tests whether batching
/// preserves the results and measures whether it saves time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batching {
    /// When requests are batched.
    pub mode: BatchingMode,
    /// Largest number of items in a run; `None` for [`Batching::SIZE_MAX_DEFAULT`]. A single
    /// request may exceed the limit.
    pub size_max: Option<u32>,
    /// Batch sizes to form when enough requests wait; empty for the sizes with the highest
    /// throughput.
    pub preferred_sizes: Vec<u32>,
    /// Longest time that a request may wait for others to join its batch while the device is busy
    /// with another run, in microseconds. The default, 0, delays no request.
    pub queue_delay_us_max: u64,
    /// Name of the mask input, which is 1 for data and 0 for padding and lets requests of different
    /// lengths run together. `None` selects the input `attention_mask`, if the model has it.
    pub mask: Option<String>,
}

/// When requests for a model are batched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchingMode {
    /// Batch if a test shows that the items of a run do not affect each other's results, and
    /// measurements show that batching saves time.
    #[default]
    Auto,
    /// Batch if batching saves time. The owner asserts that items do not affect each other's
    /// results.
    On,
    /// Never batch.
    Off,
}

/// Invalid batching settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchingError {
    /// The largest batch size is out of bounds.
    #[error("batching.size_max = {0} is not within 1 to {max}", max = Batching::SIZE_MAX_CAP)]
    SizeMax(u32),
    /// A preferred size is out of bounds.
    #[error("batching.preferred_sizes has {size}, which is not within 1 to batching.size_max = {size_max}")]
    PreferredSize {
        /// The preferred size.
        size: u32,
        /// The largest batch size.
        size_max: u32,
    },
    /// There are too many preferred sizes.
    #[error("batching.preferred_sizes has {0} sizes; at most {max} are taken", max = Batching::PREFERRED_SIZES_MAX)]
    PreferredSizes(usize),
    /// The delay is out of bounds.
    #[error("batching.queue_delay_us_max = {0} is more than {max}", max = Batching::QUEUE_DELAY_US_CAP)]
    QueueDelay(u64),
    /// The mask is not an input of the model, or the input is unsuitable as a mask.
    #[error("batching.mask = {mask:?}: {why}")]
    Mask {
        /// The configured mask.
        mask: String,
        /// Reason why the mask is invalid.
        why: &'static str,
    },
    /// The model's requests cannot be batched.
    #[error(
        "batching.mode = on, but the model has no batch dimension: the first dimension of every input and output must be variable"
    )]
    NoBatchDimension,
}

impl Batching {
    /// Default of [`Batching::size_max`].
    pub const SIZE_MAX_DEFAULT: u32 = 32;
    /// Largest [`Batching::size_max`].
    pub const SIZE_MAX_CAP: u32 = 1_024;
    /// Largest number of [`Batching::preferred_sizes`].
    pub const PREFERRED_SIZES_MAX: usize = 16;
    /// Largest [`Batching::queue_delay_us_max`]: one second.
    pub const QUEUE_DELAY_US_CAP: u64 = 1_000_000;

    /// Largest number of items in a run, with the default applied.
    #[must_use]
    pub fn size_max(&self) -> u32 {
        self.size_max.unwrap_or(Self::SIZE_MAX_DEFAULT)
    }

    /// Checks the settings that can be checked without the model.
    pub fn check(&self) -> Result<(), BatchingError> {
        let size_max = self.size_max();
        if !(1..=Self::SIZE_MAX_CAP).contains(&size_max) {
            return Err(BatchingError::SizeMax(size_max));
        }
        if self.preferred_sizes.len() > Self::PREFERRED_SIZES_MAX {
            return Err(BatchingError::PreferredSizes(self.preferred_sizes.len()));
        }
        if let Some(&size) = self.preferred_sizes.iter().find(|size| !(1..=size_max).contains(*size)) {
            return Err(BatchingError::PreferredSize { size, size_max });
        }
        if self.queue_delay_us_max > Self::QUEUE_DELAY_US_CAP {
            return Err(BatchingError::QueueDelay(self.queue_delay_us_max));
        }
        Ok(())
    }
}

impl fmt::Display for BatchingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// Formats the settings as one line, such as `auto, up to 32` or `on, up to 16, preferably 8 or 16,
/// held back for 500 µs at most`.
impl fmt::Display for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mode == BatchingMode::Off {
            return f.write_str("off");
        }
        write!(f, "{}, up to {}", self.mode, self.size_max())?;
        if !self.preferred_sizes.is_empty() {
            let sizes: Vec<String> = self.preferred_sizes.iter().map(ToString::to_string).collect();
            write!(f, ", preferably {}", sizes.join(" or "))?;
        }
        if self.queue_delay_us_max > 0 {
            write!(f, ", held back for {} µs at most", self.queue_delay_us_max)?;
        }
        if let Some(mask) = &self.mask {
            write!(f, ", padded, masked by {mask}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_against_each_other() {
        let check =
            |json: &str| serde_json::from_str::<Batching>(json).unwrap().check().map_err(|e| e.to_string());
        for good in [
            "{}",
            r#"{"mode":"off"}"#,
            r#"{"size_max":1}"#,
            r#"{"mode":"on","size_max":64,"preferred_sizes":[8,64],"queue_delay_us_max":1000000,"mask":"m"}"#,
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            (r#"{"size_max":0}"#, "batching.size_max = 0 is not within 1 to 1024"),
            (r#"{"size_max":1025}"#, "batching.size_max = 1025 is not within 1 to 1024"),
            (r#"{"preferred_sizes":[8,33]}"#, "which is not within 1 to batching.size_max = 32"),
            (r#"{"preferred_sizes":[0]}"#, "batching.preferred_sizes has 0"),
            (r#"{"queue_delay_us_max":1000001}"#, "is more than 1000000"),
        ] {
            assert!(check(bad).unwrap_err().contains(why), "{bad}: {:?}", check(bad));
        }
        let many = Batching { preferred_sizes: vec![1; 17], ..Batching::default() };
        assert_eq!(many.check(), Err(BatchingError::PreferredSizes(17)));
        assert!(serde_json::from_str::<Batching>(r#"{"max_batch_size":8}"#).is_err());
    }

    #[test]
    fn they_read_as_a_line() {
        assert_eq!(Batching::default().to_string(), "auto, up to 32");
        let all = Batching {
            mode: BatchingMode::On,
            size_max: Some(16),
            preferred_sizes: vec![8, 16],
            queue_delay_us_max: 500,
            mask: Some("mask".into()),
        };
        assert_eq!(
            all.to_string(),
            "on, up to 16, preferably 8 or 16, held back for 500 µs at most, padded, masked by mask"
        );
        assert_eq!(Batching { mode: BatchingMode::Off, ..all }.to_string(), "off");
    }
}
