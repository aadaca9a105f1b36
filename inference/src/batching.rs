//! Dynamic batching: runs waiting requests for one model together.
//!
//! The parts, in the order in which a request meets them: [`BatchRules`] state the limits set by
//! the model's owner and signature. [`Fit`] decides which requests can share a batch. [`choose`]
//! picks the requests that run now, from the waiting requests and the measured [`Curve`]. [`join`]
//! builds one job from them and splits its outputs. [`trial`] checks beforehand whether batching
//! changes the answers. [`Batcher`] holds this state for a model in memory.

mod batcher;
mod choose;
mod curve;
mod fit;
mod join;
mod trial;

pub(crate) use batcher::{Batcher, SuccessfulRun};
pub(crate) use choose::{BatchChoice, Situation, WaitingRequest};
pub(crate) use fit::Fit;
pub(crate) use join::{JoinedJobs, join};
pub(crate) use trial::{TrialVerdict, try_out};

use std::time::Duration;
use weir_types::{Batching, BatchingError, BatchingMode, ElementType, Port, Signature};

/// Usual name, in exported language models, of the input that marks padding.
const MASK: &str = "attention_mask";

/// Rules for running requests for one model together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRules {
    /// Whether the owner guarantees that items do not affect each other's answers.
    pub(crate) is_vouched: bool,
    /// The most items in one run; at least two.
    pub(crate) size_max: u32,
    /// Preferred sizes in rising order; empty: any size.
    pub(crate) preferred_sizes: Vec<u32>,
    /// The longest time that a request may be delayed while the device is busy.
    pub(crate) queue_delay_max: Duration,
    /// Position of the input that marks padding.
    pub(crate) mask: Option<usize>,
    /// For each input, whether its second dimension is the length that the mask covers.
    pub(crate) padded: Vec<bool>,
}

impl BatchRules {
    /// The rules for a model with this signature and the owner's settings `batching`; `None` if
    /// every request must run alone.
    pub fn for_signature(signature: &Signature, batching: &Batching) -> Result<Option<Self>, BatchingError> {
        batching.check()?;
        if batching.mode == BatchingMode::Off {
            return Ok(None);
        }
        if !signature.has_batch_dimension() {
            return match batching.mode {
                BatchingMode::On => Err(BatchingError::NoBatchDimension),
                BatchingMode::Auto | BatchingMode::Off => Ok(None),
            };
        }
        let mask = mask(&signature.inputs, batching.mask.as_deref())?;
        let is_padded = |port: &Port| mask.is_some() && port.shape.get(1) == Some(&None);
        let mut preferred_sizes = batching.preferred_sizes.clone();
        preferred_sizes.sort_unstable();
        preferred_sizes.dedup();
        let rules = Self {
            is_vouched: batching.mode == BatchingMode::On,
            size_max: batching.size_max(),
            preferred_sizes,
            queue_delay_max: Duration::from_micros(batching.queue_delay_us_max),
            mask,
            padded: signature.inputs.iter().map(is_padded).collect(),
        };
        Ok((rules.size_max > 1).then_some(rules))
    }

    /// The most items in one run.
    #[must_use]
    pub fn size_max(&self) -> u32 {
        self.size_max
    }

    /// The sizes that runs aim for, in rising order; empty: any size.
    #[must_use]
    pub fn preferred_sizes(&self) -> &[u32] {
        &self.preferred_sizes
    }

    /// The longest time that a request may be delayed while the device is busy.
    #[must_use]
    pub fn queue_delay_max(&self) -> Duration {
        self.queue_delay_max
    }
}

/// Position of the mask: the input named in the settings, or else an input that has the usual name
/// and is a valid mask.
fn mask(inputs: &[Port], asked: Option<&str>) -> Result<Option<usize>, BatchingError> {
    let position = inputs.iter().position(|port| port.name == asked.unwrap_or(MASK));
    let fault = match position.and_then(|position| inputs.get(position)) {
        None => Some("the model has no such input"),
        Some(port) if port.shape.len() != 2 || port.shape.get(1) != Some(&None) => {
            Some("a mask has two dimensions, of which the second may vary")
        }
        Some(_)
            if inputs
                .iter()
                .any(|port| port.datatype == ElementType::Bytes && port.shape.get(1) == Some(&None)) =>
        {
            Some("strings cannot be padded")
        }
        // Only the second dimension can be padded.
        Some(_) if inputs.iter().any(|port| port.shape.iter().skip(2).any(Option::is_none)) => Some(
            "an input has a third dimension, or one after it, that may vary: only the second can be padded",
        ),
        Some(_) => None,
    };
    match (fault, asked) {
        (None, _) => Ok(position),
        (Some(_), None) => Ok(None),
        (Some(why), Some(mask)) => Err(BatchingError::Mask { mask: mask.to_owned(), why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, shape: &[Option<u32>]) -> Port {
        Port { name: name.into(), datatype: ElementType::Int64, shape: shape.to_vec() }
    }

    fn rules(inputs: &[Port], outputs: &[Port], json: &str) -> Result<Option<BatchRules>, BatchingError> {
        let signature = Signature { inputs: inputs.to_vec(), outputs: outputs.to_vec() };
        BatchRules::for_signature(&signature, &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn batch_dimension_requires_all_inputs_and_outputs() {
        let free = port("x", &[None, Some(2)]);
        let fixed = port("x", &[Some(1), None]);
        let scalar = port("x", &[]);
        let one = |port: &Port| vec![port.clone()];
        assert!(rules(&one(&free), &one(&free), "{}").unwrap().is_some());
        for (inputs, outputs) in [
            (one(&fixed), one(&free)),
            (one(&free), one(&fixed)),
            (vec![free.clone(), scalar.clone()], one(&free)),
            (Vec::new(), one(&free)),
            (one(&free), Vec::new()),
        ] {
            assert_eq!(rules(&inputs, &outputs, "{}"), Ok(None));
            assert_eq!(rules(&inputs, &outputs, r#"{"mode":"on"}"#), Err(BatchingError::NoBatchDimension));
        }
        assert_eq!(rules(&one(&free), &one(&free), r#"{"mode":"off"}"#), Ok(None));
        assert_eq!(rules(&one(&free), &one(&free), r#"{"size_max":1}"#), Ok(None));
        let sorted = rules(&one(&free), &one(&free), r#"{"preferred_sizes":[8,4,8]}"#).unwrap().unwrap();
        assert_eq!(sorted.preferred_sizes(), [4, 8]);
    }

    #[test]
    fn mask_is_found_by_usual_or_configured_name() {
        let ids = port("input_ids", &[None, None]);
        let other = port("attention_mask", &[None, None]);
        let out = [port("y", &[None, None, Some(3)])];
        let mask = |inputs: &[Port], json| rules(inputs, &out, json).map(|rules| rules.unwrap().mask);
        assert_eq!(mask(&[ids.clone(), other.clone()], "{}"), Ok(Some(1)));
        assert_eq!(mask(std::slice::from_ref(&ids), "{}"), Ok(None));
        assert_eq!(mask(&[ids.clone(), other.clone()], r#"{"mask":"input_ids"}"#), Ok(Some(0)));
        assert!(mask(std::slice::from_ref(&ids), r#"{"mask":"nothing"}"#).is_err());
        // An unfit input is not detected as the mask, and is refused when named.
        for unfit in
            [vec![port("attention_mask", &[None, Some(4)])], vec![other, port("x", &[None, None, None])]]
        {
            assert_eq!(mask(&unfit, "{}"), Ok(None));
            assert!(mask(&unfit, r#"{"mask":"attention_mask"}"#).is_err());
        }
    }
}
