//! Compatibility of requests in a batch.

use super::BatchRules;
use crate::request::PlacedJob;

/// The shortest padded length, and the step between padded lengths up to four times it.
const LENGTH_STEP: u32 = 16;

/// Batch class and size of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Requests with equal classes can share a batch. The class holds all dimensions of the inputs
    /// except the first, with padded dimensions rounded up.
    pub(crate) class: Box<[u32]>,
    /// The request's first dimension.
    pub(crate) items: u32,
    /// Bytes of its inputs.
    pub(crate) bytes: u64,
}

impl Fit {
    /// `None` for a request that can only run alone: a request without items, with more items than
    /// a batch may have, or with inconsistent inputs.
    pub(crate) fn for_job(rules: &BatchRules, job: &PlacedJob) -> Option<Self> {
        let items = *job.inputs.first()?.shape().dimensions().first()?;
        if items == 0 || items >= rules.size_max {
            return None;
        }
        let length = rules.mask.map(|mask| length(job, mask)).unwrap_or_default();
        let mut class = Vec::new();
        let mut bytes = 0;
        for (position, input) in job.inputs.iter().enumerate() {
            let (first, rest) = input.shape().dimensions().split_first()?;
            if *first != items {
                return None;
            }
            let is_padded = rules.padded.get(position).copied().unwrap_or_default();
            if is_padded && rest.first().copied() != length {
                return None;
            }
            class.extend(
                rest.iter().enumerate().map(
                    |(axis, size)| {
                        if is_padded && axis == 0 { bucket(*size) } else { *size }
                    },
                ),
            );
            bytes += input.bytes();
        }
        Some(Self { class: class.into(), items, bytes })
    }
}

/// The second dimension of the mask.
fn length(job: &PlacedJob, mask: usize) -> Option<u32> {
    job.inputs.get(mask)?.shape().dimensions().get(1).copied()
}

/// Bucket of a length. Lengths in one bucket are padded to the longest among them, which adds at
/// most a quarter to any length but the shortest.
fn bucket(length: u32) -> u32 {
    let step = if length <= 4 * LENGTH_STEP { LENGTH_STEP } else { 1 << ((length - 1).ilog2() - 2) };
    length.checked_next_multiple_of(step).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Job;
    use crate::tensor::Tensor;
    use weir_device::Arena;
    use weir_types::{Batching, ElementType, Port, Shape, Signature};

    fn job(shapes: &[&[u32]]) -> PlacedJob {
        let arena = Arena::new(1 << 20);
        let input = |dimensions: &&[u32]| {
            let shape = Shape::new(dimensions).unwrap();
            let data = arena.buffer(shape.element_count() as usize * 8).unwrap().freeze();
            Tensor::new(ElementType::Int64, shape, data).unwrap()
        };
        PlacedJob::from(&Job { inputs: shapes.iter().map(input).collect(), outputs: vec![0] })
    }

    fn rules(names: &[&str]) -> BatchRules {
        let port = |name: &&str| Port {
            name: (*name).to_owned(),
            datatype: ElementType::Int64,
            shape: vec![None, None],
        };
        let signature = Signature { inputs: names.iter().map(port).collect(), outputs: vec![port(&"y")] };
        BatchRules::for_signature(&signature, &Batching::default()).unwrap().unwrap()
    }

    #[test]
    fn equal_shapes_share_a_class_for_any_item_count() {
        let rules = rules(&["a", "b"]);
        let fit = |shapes: &[&[u32]]| Fit::for_job(&rules, &job(shapes));
        let one = fit(&[&[1, 4], &[1, 2]]).unwrap();
        let three = fit(&[&[3, 4], &[3, 2]]).unwrap();
        assert_eq!((one.items, three.items, one.bytes), (1, 3, 48));
        assert_eq!(one.class, three.class);
        assert_ne!(one.class, fit(&[&[1, 2], &[1, 4]]).unwrap().class);
        assert_eq!(fit(&[&[1, 4], &[3, 2]]), None, "one of its inputs is stretched over the other");
        assert_eq!(fit(&[&[0, 4], &[0, 2]]), None);
        assert_eq!(fit(&[&[32, 4], &[32, 2]]), None, "it fills a batch by itself");
    }

    #[test]
    fn similar_masked_lengths_share_a_class() {
        let rules = rules(&["input_ids", "attention_mask"]);
        let class =
            |length: u32| Fit::for_job(&rules, &job(&[&[1, length], &[1, length]])).map(|fit| fit.class);
        assert_eq!(class(3), class(16));
        assert_ne!(class(16), class(17));
        assert_eq!(class(200), class(224));
        assert_ne!(class(192), class(200));
        assert_eq!(
            Fit::for_job(&rules, &job(&[&[1, 5], &[1, 6]])),
            None,
            "the mask is not that of the input"
        );
        for length in 17..3_000_u32 {
            let padded = bucket(length);
            assert!(padded >= length && f64::from(padded - length) <= 0.25 * f64::from(length).max(64.0));
        }
    }
}
