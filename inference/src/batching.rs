//! Running requests that wait for one model together, as one batch.
//!
//! In the order a request meets them: [`BatchRules`] are what a model's owner and its signature allow; [`Fit`] says which requests go
//! together; [`choose`] picks those that run now, from what waits and the measured [`Curve`]; [`join`] makes one job of them and parts its
//! outputs again; [`trial`] finds out beforehand whether that changes the answers; [`Batcher`] is what a model in memory keeps of all this.

mod batcher;
mod choose;
mod curve;
mod fit;
mod join;
mod trial;

pub(crate) use batcher::{Batcher, Ran};
pub(crate) use choose::{Candidate, Choice, Situation};
pub(crate) use fit::Fit;
pub(crate) use join::{Joined, join};
pub(crate) use trial::{Verdict, try_out};

use std::time::Duration;
use weir_types::{Batching, BatchingError, BatchingMode, ElementType, Port, Signature};

/// What the usual export of a language model calls the input that tells what is there from padding.
const MASK: &str = "attention_mask";

/// How requests for one model may be run together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRules {
    /// Whether the owner vouches that items do not change each other's answers.
    pub(crate) is_vouched: bool,
    /// Items in one run, at most; at least two.
    pub(crate) size_max: u32,
    /// In rising order; empty for any size.
    pub(crate) preferred_sizes: Vec<u32>,
    /// How long a request may be held back while the device is busy.
    pub(crate) queue_delay_max: Duration,
    /// The position of the input that tells what is there from padding.
    pub(crate) mask: Option<usize>,
    /// For each input, whether its second dimension is the length that the mask is about.
    pub(crate) padded: Vec<bool>,
}

impl BatchRules {
    /// The rules for a model of this signature whose owner says `batching`; none where each request is to run alone.
    pub fn of(signature: &Signature, batching: &Batching) -> Result<Option<Self>, BatchingError> {
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

    /// Items in one run, at most.
    #[must_use]
    pub fn size_max(&self) -> u32 {
        self.size_max
    }

    /// The sizes that runs are brought to, in rising order; none for any.
    #[must_use]
    pub fn preferred_sizes(&self) -> &[u32] {
        &self.preferred_sizes
    }

    /// How long a request may be held back while the device is busy.
    #[must_use]
    pub fn queue_delay_max(&self) -> Duration {
        self.queue_delay_max
    }
}

/// The position of the mask: the one that is asked for, or one that goes by the usual name and can be one.
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
        // What is padded is the second dimension.
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
        BatchRules::of(&signature, &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_batch_dimension_is_one_that_everything_has() {
        let (free, fixed, scalar) =
            (port("x", &[None, Some(2)]), port("x", &[Some(1), None]), port("x", &[]));
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
    fn a_mask_is_found_by_its_usual_name_or_named() {
        let (ids, other) = (port("input_ids", &[None, None]), port("attention_mask", &[None, None]));
        let out = [port("y", &[None, None, Some(3)])];
        let mask = |inputs: &[Port], json| rules(inputs, &out, json).map(|rules| rules.unwrap().mask);
        assert_eq!(mask(&[ids.clone(), other.clone()], "{}"), Ok(Some(1)));
        assert_eq!(mask(std::slice::from_ref(&ids), "{}"), Ok(None));
        assert_eq!(mask(&[ids.clone(), other.clone()], r#"{"mask":"input_ids"}"#), Ok(Some(0)));
        assert!(mask(std::slice::from_ref(&ids), r#"{"mask":"nothing"}"#).is_err());
        // What cannot be one is not taken for one, and refused when it is named.
        for unfit in
            [vec![port("attention_mask", &[None, Some(4)])], vec![other, port("x", &[None, None, None])]]
        {
            assert_eq!(mask(&unfit, "{}"), Ok(None));
            assert!(mask(&unfit, r#"{"mask":"attention_mask"}"#).is_err());
        }
    }
}
