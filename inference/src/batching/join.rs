//! Joining several jobs into one, and splitting its outputs.

mod split;

use super::BatchRules;
use crate::error::InferenceError;
use crate::request::Job;
use crate::tensor::{Tensor, TensorError};
use weir_device::Arena;
use weir_types::Shape;

/// Several jobs joined into one.
pub(crate) struct JoinedJobs {
    pub(crate) job: Job,
    /// Bytes of its inputs.
    pub(crate) input_bytes: u64,
    /// Bytes of the inputs that are padding.
    pub(crate) padding_bytes: u64,
    parts: Vec<JobShare>,
    items: u32,
    /// Padded length of the second dimension.
    length: Option<u32>,
}

/// One job's share.
struct JobShare {
    items: u32,
    /// The job's unpadded second dimension.
    length: Option<u32>,
    /// The outputs that the job requests, as positions in the model's signature.
    outputs: Vec<usize>,
}

/// Concatenates the inputs of `jobs`, which share a class. With a mask, rows are padded with zeroes
/// to the longest row, and to at least `length_min`.
pub(crate) fn join(
    rules: &BatchRules,
    jobs: &[&Job],
    length_min: u32,
    arena: &Arena,
) -> Result<JoinedJobs, InferenceError> {
    let parts: Vec<JobShare> = jobs.iter().map(|job| part(rules, job)).collect();
    let length = parts.iter().filter_map(|part| part.length).max().map(|length| length.max(length_min));
    let items = parts.iter().map(|part| part.items).sum();
    let mut outputs: Vec<usize> = jobs.iter().flat_map(|job| job.outputs.iter().copied()).collect();
    outputs.sort_unstable();
    outputs.dedup();
    let ports = jobs.first().map_or(0, |job| job.inputs.len());
    let inputs = (0..ports).map(|position| {
        let own: Vec<&Tensor> = jobs.iter().filter_map(|job| job.inputs.get(position)).collect();
        let is_padded = rules.padded.get(position).copied().unwrap_or_default();
        concatenate(&own, items, length.filter(|_| is_padded), arena)
    });
    let inputs: Vec<Tensor> = inputs.collect::<Result<_, _>>()?;
    let bytes = |inputs: &[Tensor]| inputs.iter().map(|input| input.data().len() as u64).sum::<u64>();
    let input_bytes = bytes(&inputs);
    let own_bytes: u64 = jobs.iter().map(|job| bytes(&job.inputs)).sum();
    let padding_bytes = input_bytes.saturating_sub(own_bytes);
    Ok(JoinedJobs { job: Job { inputs, outputs }, input_bytes, padding_bytes, parts, items, length })
}

fn part(rules: &BatchRules, job: &Job) -> JobShare {
    let mask = rules.mask.and_then(|mask| job.inputs.get(mask));
    let length = mask.and_then(|mask| mask.shape().dimensions().get(1).copied());
    JobShare { items: job.batch(), length, outputs: job.outputs.clone() }
}

fn concatenate(
    tensors: &[&Tensor],
    items: u32,
    length: Option<u32>,
    arena: &Arena,
) -> Result<Tensor, InferenceError> {
    let Some(first) = tensors.first() else { return Err(InferenceError::Run("a batch of nothing".into())) };
    let mut dimensions = first.shape().dimensions().to_vec();
    if let Some(size) = dimensions.first_mut() {
        *size = items;
    }
    if let (Some(length), Some(size)) = (length, dimensions.get_mut(1)) {
        *size = length;
    }
    let shape = Shape::new(&dimensions).map_err(TensorError::from)?;
    let own_bytes = tensors.iter().map(|tensor| tensor.data().len()).sum::<usize>();
    let element_bytes = first.element_type().size_bytes();
    let all_bytes = element_bytes.map_or(own_bytes, |bytes| {
        usize::try_from(shape.element_count()).unwrap_or(usize::MAX).saturating_mul(bytes)
    });
    let mut data = arena.with_capacity(all_bytes)?;
    for tensor in tensors {
        let rows = rows(tensor)
            .filter(|_| length.is_some_and(|length| Some(&length) != tensor.shape().dimensions().get(1)));
        let (Some((count, row_bytes)), Some(padded_bytes)) = (rows, all_bytes.checked_div(items as usize))
        else {
            data.extend_from_slice(tensor.data())?;
            continue;
        };
        for row in 0..count {
            let row = tensor.data().get(row * row_bytes..(row + 1) * row_bytes).unwrap_or_default();
            let end = data.len() + padded_bytes;
            data.extend_from_slice(row)?;
            data.resize_with_zeroes(end)?;
        }
    }
    Ok(Tensor::new(first.element_type(), shape, data.freeze())?)
}

/// Number of items of a tensor, and the bytes of each item.
fn rows(tensor: &Tensor) -> Option<(usize, usize)> {
    let count = usize::try_from(*tensor.shape().dimensions().first()?).ok()?;
    Some((count, tensor.data().len().checked_div(count)?))
}

impl JoinedJobs {
    /// Number of jobs.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Number of items in all jobs.
    pub(crate) fn items(&self) -> u32 {
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_types::{Batching, ElementType, Port, Signature};

    fn arena() -> Arena {
        Arena::new(64 << 20)
    }

    fn tensor(element_type: ElementType, dimensions: &[u32], data: &[u8]) -> Tensor {
        Tensor::new(element_type, Shape::new(dimensions).unwrap(), arena().copy_of(data).unwrap()).unwrap()
    }

    fn longs(dimensions: &[u32], from: u64) -> Tensor {
        let count: u32 = dimensions.iter().product();
        let data: Vec<u8> = (0..u64::from(count)).flat_map(|n| (from + n).to_le_bytes()).collect();
        tensor(ElementType::Int64, dimensions, &data)
    }

    fn port(name: &str, datatype: ElementType, shape: &[Option<u32>]) -> Port {
        Port { name: name.into(), datatype, shape: shape.to_vec() }
    }

    fn text() -> (BatchRules, Signature) {
        let free = [None, None];
        let signature = Signature {
            inputs: vec![
                port("ids", ElementType::Int64, &free),
                port("attention_mask", ElementType::Int64, &free),
            ],
            outputs: vec![
                port("each", ElementType::Int64, &[None, None, Some(2)]),
                port("all", ElementType::Int64, &[None, Some(2)]),
                port("pairs", ElementType::Int64, &[None, Some(3), None, None]),
            ],
        };
        (BatchRules::for_signature(&signature, &Batching::default()).unwrap().unwrap(), signature)
    }

    #[test]
    fn split_outputs_are_views_in_requested_order() {
        let free = [None, Some(2)];
        let signature = Signature {
            inputs: vec![port("x", ElementType::Int64, &free)],
            outputs: vec![port("y", ElementType::Int64, &free), port("s", ElementType::Bytes, &[None])],
        };
        let rules = BatchRules::for_signature(&signature, &Batching::default()).unwrap().unwrap();
        let first = Job { inputs: vec![longs(&[1, 2], 10)], outputs: vec![1, 0] };
        let second = Job { inputs: vec![longs(&[2, 2], 20)], outputs: vec![0] };
        let joined = join(&rules, &[&first, &second], 0, &arena()).unwrap();
        assert_eq!((joined.items(), joined.padding_bytes, joined.input_bytes), (3, 0, 48));
        assert_eq!(joined.job.outputs, [0, 1]);
        let strings = tensor(ElementType::Bytes, &[3], b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc");
        let outputs = [joined.job.inputs[0].clone(), strings.clone()];
        let own = joined.part(&outputs, &signature, &arena()).unwrap().unwrap();
        assert_eq!(own[0], [tensor(ElementType::Bytes, &[1], b"\x01\0\0\0a"), longs(&[1, 2], 10)]);
        assert_eq!(own[1], [longs(&[2, 2], 20)]);
        assert_eq!(own[1][0].data().as_ptr(), outputs[0].data()[16..].as_ptr(), "it was copied");
        // An output with a different number of items cannot be split.
        let short = [longs(&[2, 2], 0), strings];
        assert!(joined.part(&short, &signature, &arena()).unwrap().is_none());
    }

    #[test]
    fn padding_is_zeroes_and_is_removed_from_outputs() {
        let (rules, signature) = text();
        let job = |items: u32, length: u32, from: u64| Job {
            inputs: vec![longs(&[items, length], from), longs(&[items, length], 1)],
            outputs: vec![0, 1, 2],
        };
        let short = job(2, 2, 100);
        let long = job(1, 3, 200);
        let joined = join(&rules, &[&short, &long], 0, &arena()).unwrap();
        assert_eq!((joined.items(), joined.padding_bytes), (3, 2 * 2 * 8));
        let padded: Vec<u8> =
            [100_u64, 101, 0, 102, 103, 0, 200, 201, 202].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(joined.job.inputs[0], tensor(ElementType::Int64, &[3, 3], &padded));

        let outputs = [longs(&[3, 3, 2], 0), longs(&[3, 2], 0), longs(&[3, 3, 3, 3], 0)];
        let own = joined.part(&outputs, &signature, &arena()).unwrap().unwrap();
        let kept: Vec<u8> = [0_u64, 1, 2, 3, 6, 7, 8, 9].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(own[0][0], tensor(ElementType::Int64, &[2, 2, 2], &kept));
        assert_eq!(own[0][1], longs(&[2, 2], 0));
        assert_eq!(own[0][2].shape().dimensions(), [2, 3, 2, 2]);
        assert_eq!(own[0][2].data()[..16], longs(&[2], 0).data()[..], "the first row of the first pair");
        assert_eq!(own[1][0], longs(&[1, 3, 2], 12), "the longest is as it was");
    }

    proptest! {
        #[test]
        fn split_reverses_join(sizes in prop::collection::vec((1_u32..4, 1_u32..20), 1..6)) {
            let (rules, mut signature) = text();
            signature.outputs = vec![port("echo", ElementType::Int64, &[None, None])];
            let jobs: Vec<Job> = sizes.iter().zip(0..).map(|((items, length), n)| {
                let input = longs(&[*items, *length], n * 1_000 + 1);
                Job { inputs: vec![input.clone(), input], outputs: vec![0] }
            }).collect();
            let joined = join(&rules, &jobs.iter().collect::<Vec<_>>(), 0, &arena()).unwrap();
            let own = joined.part(&[joined.job.inputs[0].clone()], &signature, &arena()).unwrap().unwrap();
            for (job, own) in jobs.iter().zip(own) {
                prop_assert_eq!(&job.inputs[..1], &own[..]);
            }
            let longest = sizes.iter().map(|(_, length)| length).max().unwrap();
            let wasted: u32 = sizes.iter().map(|(items, length)| items * (longest - length)).sum();
            prop_assert_eq!(joined.padding_bytes, u64::from(wasted) * 16);
        }
    }
}
