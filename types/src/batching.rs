//! What the owner of a model says about running requests for it together.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How requests that wait for a model are run together. The default lets the node find out whether that is right, and whether it pays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batching {
    /// Whether they are.
    pub mode: BatchingMode,
    /// Items in one run, at most; none for [`Batching::SIZE_MAX_DEFAULT`]. A single request may have more.
    pub size_max: Option<u32>,
    /// Sizes that runs are brought to where enough requests wait; none for whichever does the most in the least time.
    pub preferred_sizes: Vec<u32>,
    /// How long a request may be held back for others while the device is busy with another run, in microseconds. The default, 0, holds
    /// nothing back.
    pub queue_delay_us_max: u64,
    /// The input that is 1 for what is there and 0 for padding, which lets requests of different lengths run together; none for an input
    /// called `attention_mask`, if there is one.
    pub mask: Option<String>,
}

/// Whether requests for a model are run together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchingMode {
    /// Where trying it out shows that the items of a run do not change each other's answers, and measuring that it saves time.
    #[default]
    Auto,
    /// Where it saves time: the owner vouches that items do not change each other's answers.
    On,
    /// Never.
    Off,
}

/// Settings that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchingError {
    /// The largest batch is out of bounds.
    #[error("batching.size_max = {0} is not within 1 to {max}", max = Batching::SIZE_MAX_CAP)]
    SizeMax(u32),
    /// A preferred size is out of bounds.
    #[error("batching.preferred_sizes has {size}, which is not within 1 to batching.size_max = {size_max}")]
    PreferredSize {
        /// Which.
        size: u32,
        /// The largest batch.
        size_max: u32,
    },
    /// There are too many preferred sizes.
    #[error("batching.preferred_sizes has {0} sizes; at most {max} are taken", max = Batching::PREFERRED_SIZES_MAX)]
    PreferredSizes(usize),
    /// The delay is out of bounds.
    #[error("batching.queue_delay_us_max = {0} is more than {max}", max = Batching::QUEUE_DELAY_US_CAP)]
    QueueDelay(u64),
    /// The mask is not an input of the model, or not one that can be a mask.
    #[error("batching.mask = {mask:?}: {why}")]
    Mask {
        /// What was given.
        mask: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Requests cannot be put together.
    #[error(
        "batching.mode = on, but the model has no batch dimension: the first dimension of every input and output must be variable"
    )]
    NoBatchDimension,
}

impl Batching {
    /// The largest batch unless the owner says otherwise.
    pub const SIZE_MAX_DEFAULT: u32 = 32;
    /// The largest [`Batching::size_max`].
    pub const SIZE_MAX_CAP: u32 = 1_024;
    /// The most [`Batching::preferred_sizes`].
    pub const PREFERRED_SIZES_MAX: usize = 16;
    /// The largest [`Batching::queue_delay_us_max`]: a second.
    pub const QUEUE_DELAY_US_CAP: u64 = 1_000_000;

    /// Items in one run, at most.
    #[must_use]
    pub fn size_max(&self) -> u32 {
        self.size_max.unwrap_or(Self::SIZE_MAX_DEFAULT)
    }

    /// Check what can be checked without the model.
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

/// As one line: `auto, up to 32` or `on, up to 16, preferably 8 or 16, held back for 500 µs at most`.
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
            write!(f, ", padded behind {mask}")?;
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
            "on, up to 16, preferably 8 or 16, held back for 500 µs at most, padded behind mask"
        );
        assert_eq!(Batching { mode: BatchingMode::Off, ..all }.to_string(), "off");
    }
}
