//! Trials: detecting whether the items of a run affect each other's answers.
//!
//! A variable first dimension of every input and output does not prove that items are independent:
//! the dimension may be the length of one sequence, or the model may subtract the mean of all rows.
//! The trial therefore runs a request alone, and then together with another request that precedes
//! or follows it in the batch, with padding where requests could be padded. The answers must agree,
//! up to rounding.

use super::{BatchRules, JoinedJobs, join};
use crate::backend::Session;
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::request::Job;
use crate::tensor::Tensor;
use weir_device::Arena;
use weir_types::{ElementType, Precision, Signature};

/// Tolerance between answers.
#[derive(Debug, Clone, Copy)]
struct Tolerance {
    /// Relative to the element.
    element: f64,
    /// Relative to the largest element.
    largest: f64,
}

/// Tolerance of fp32 and fp64 computed in this precision. A GPU adds the products of another batch
/// size in another order, after it has rounded their factors.
fn tolerance(precision: Precision) -> Tolerance {
    match precision {
        Precision::Fp32 => Tolerance { element: 1e-3, largest: 1e-4 },
        Precision::Tf32 => Tolerance { element: 1e-2, largest: 5e-3 },
        Precision::Fp16 => HALF,
        Precision::Bf16 => Tolerance { element: 5e-2, largest: 5e-2 },
    }
}

/// Tolerance of elements of two bytes, if the precision does not need more.
const HALF: Tolerance = Tolerance { element: 2e-2, largest: 1e-2 };
/// Elements of padding added to a request.
const PADDING: u32 = 7;

/// Result of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialVerdict {
    /// The answers agree.
    Same,
    /// The answers differ.
    Differs,
    /// The model fails on a similar request.
    Failed,
    /// No similar request exists, or the request itself failed or was stopped.
    Unclear,
}

/// Runs a trial of `job`.
pub(crate) fn try_out(
    rules: &BatchRules,
    signature: &Signature,
    job: &Job,
    session: &mut dyn Session,
    (arena, interrupt): (&Arena, &Interrupt),
) -> TrialVerdict {
    let Some(other) = another(job, arena) else { return TrialVerdict::Unclear };
    let all = (0..signature.outputs.len()).collect();
    let job = Job { outputs: all, ..job.clone() };
    let mut trial = || -> Result<TrialVerdict, InferenceError> {
        let alone = session.run(&job, interrupt)?;
        let length = rules.mask.and_then(|mask| job.inputs.get(mask)?.shape().dimensions().get(1).copied());
        let length_min = length.map_or(0, |length| length.saturating_add(PADDING));
        for (jobs, place) in [([&job, &other], 0), ([&other, &job], 1)] {
            let joined: JoinedJobs = join(rules, &jobs, length_min, arena)?;
            let together = session.run(&joined.job, interrupt)?;
            let parted = joined.part(&together, signature, arena)?;
            let own = parted.as_ref().and_then(|parted| parted.get(place));
            if own.is_none_or(|own| !are_same(&alone, own, session.precision())) {
                return Ok(TrialVerdict::Differs);
            }
        }
        Ok(TrialVerdict::Same)
    };
    let failed = |_| if interrupt.reason().is_some() { TrialVerdict::Unclear } else { TrialVerdict::Failed };
    trial().unwrap_or_else(failed)
}

/// A different request with values as plausible as those of `job`: the same elements in reverse
/// order, with floating-point numbers shifted. `None` if the result equals `job`.
fn another(job: &Job, arena: &Arena) -> Option<Job> {
    let inputs: Vec<Tensor> =
        job.inputs.iter().map(|tensor| reversed(tensor, arena)).collect::<Option<_>>()?;
    let differs = inputs != job.inputs;
    differs.then(|| Job { inputs, outputs: job.outputs.clone() })
}

fn reversed(tensor: &Tensor, arena: &Arena) -> Option<Tensor> {
    let Some(element_bytes) = tensor.element_type().size_bytes() else { return Some(tensor.clone()) };
    let mut data = arena.with_capacity(tensor.data().len()).ok()?;
    let largest = numbers(tensor).map_or(0.0, |values| largest(&values));
    for (index, element) in tensor.data().rchunks_exact(element_bytes).enumerate() {
        // By at least 0.25, so that zeroes change, and by most of the largest element, so that
        // means and sums over both requests differ by more than rounding.
        let moved = |value: f64| value * 0.5 + 0.75 * largest + 0.25 + (index % 5) as f64 / 16.0;
        let written = match tensor.element_type() {
            ElementType::Fp32 => {
                let value = moved(f64::from(f32::from_le_bytes(element.try_into().ok()?)));
                #[expect(clippy::cast_possible_truncation, reason = "rounding does no harm here")]
                data.extend_from_slice(&(value as f32).to_le_bytes())
            }
            ElementType::Fp64 => {
                data.extend_from_slice(&moved(f64::from_le_bytes(element.try_into().ok()?)).to_le_bytes())
            }
            _ => data.extend_from_slice(element),
        };
        written.ok()?;
    }
    Tensor::new(tensor.element_type(), tensor.shape().clone(), data.freeze()).ok()
}

fn are_same(some: &[Tensor], others: &[Tensor], precision: Precision) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| is_same(one, other, precision))
}

/// Whether two tensors that were computed in this precision are equal up to rounding.
fn is_same(one: &Tensor, other: &Tensor, precision: Precision) -> bool {
    if one.element_type() != other.element_type() || one.shape() != other.shape() {
        return false;
    }
    let computed = tolerance(precision);
    let tolerance = match one.element_type() {
        ElementType::Fp16 | ElementType::Bf16 => Tolerance {
            element: computed.element.max(HALF.element),
            largest: computed.largest.max(HALF.largest),
        },
        _ => computed,
    };
    let (Some(values), Some(other_values)) = (numbers(one), numbers(other)) else {
        return one.data() == other.data();
    };
    let largest = largest(&values);
    values.iter().zip(&other_values).all(|(value, other)| {
        let is_near = (value - other).abs() <= tolerance.element * value.abs() + tolerance.largest * largest;
        is_near || value == other || value.is_nan() && other.is_nan()
    })
}

/// The largest magnitude of the finite elements.
fn largest(values: &[f64]) -> f64 {
    values.iter().filter(|value| value.is_finite()).fold(0.0, |most, value| most.max(value.abs()))
}

/// Elements of a floating-point tensor; `None` for other types, which must be equal exactly.
fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
    let element_type = tensor.element_type();
    let data = tensor.data();
    let of = |value: f32| f64::from(value);
    match element_type {
        ElementType::Fp32 => {
            Some(data.as_chunks::<4>().0.iter().map(|bytes| of(f32::from_le_bytes(*bytes))).collect())
        }
        ElementType::Fp64 => {
            Some(data.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
        }
        ElementType::Bf16 => {
            let value = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            Some(data.as_chunks::<2>().0.iter().map(|bytes| of(value(bytes))).collect())
        }
        ElementType::Fp16 => {
            Some(data.as_chunks::<2>().0.iter().map(|bytes| half(u16::from_le_bytes(*bytes))).collect())
        }
        _ => None,
    }
}

/// Decodes IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1_024.0) * 2_f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Batching, Port, Shape};

    /// A model with one float input and one float output, as a function of all rows.
    struct FunctionModel(fn(&[Vec<f32>]) -> Vec<Vec<f32>>, Precision);

    impl Session for FunctionModel {
        fn run(&mut self, job: &Job, _: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
            let input = &job.inputs[0];
            let width = input.shape().dimensions()[1] as usize;
            let values: Vec<f32> =
                input.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let rows: Vec<Vec<f32>> = values.chunks(width).map(<[f32]>::to_vec).collect();
            Ok(vec![floats(&self.0(&rows))])
        }

        fn precision(&self) -> Precision {
            self.1
        }
    }

    fn floats(rows: &[Vec<f32>]) -> Tensor {
        let shape = Shape::new(&[rows.len() as u32, rows[0].len() as u32]).unwrap();
        let data: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(ElementType::Fp32, shape, Arena::new(1 << 20).copy_of(&data).unwrap()).unwrap()
    }

    fn verdict(model: fn(&[Vec<f32>]) -> Vec<Vec<f32>>, rows: &[Vec<f32>]) -> TrialVerdict {
        verdict_in(Precision::Fp32, model, rows)
    }

    fn verdict_in(
        precision: Precision,
        model: fn(&[Vec<f32>]) -> Vec<Vec<f32>>,
        rows: &[Vec<f32>],
    ) -> TrialVerdict {
        let port = Port { name: "x".into(), datatype: ElementType::Fp32, shape: vec![None, None] };
        let signature = Signature { inputs: vec![port.clone()], outputs: vec![port] };
        let rules = BatchRules::for_signature(&signature, &Batching::default()).unwrap().unwrap();
        let job = Job { inputs: vec![floats(rows)], outputs: vec![0] };
        let arena = Arena::new(1 << 20);
        try_out(
            &rules,
            &signature,
            &job,
            &mut FunctionModel(model, precision),
            (&arena, &Interrupt::default()),
        )
    }

    #[test]
    fn trial_detects_rows_that_affect_each_other() {
        let each = |rows: &[Vec<f32>]| {
            rows.iter().map(|row| row.iter().map(|value| value * 1.000_01 + 1.0).collect()).collect()
        };
        let less_mean = |rows: &[Vec<f32>]| {
            let mean = rows.iter().flatten().sum::<f32>() / (rows.len() * rows[0].len()) as f32;
            rows.iter().map(|row| row.iter().map(|value| value - mean).collect()).collect()
        };
        // Like an LSTM over the first dimension: a row depends on the rows before it.
        let running = |rows: &[Vec<f32>]| {
            let mut state = vec![0.0; rows[0].len()];
            let mut next = |row: &Vec<f32>| {
                state.iter_mut().zip(row).for_each(|(state, value)| *state += value);
                state.clone()
            };
            rows.iter().map(&mut next).collect()
        };
        let reversed = |rows: &[Vec<f32>]| rows.iter().rev().cloned().collect();
        let all_in_one = |rows: &[Vec<f32>]| vec![vec![rows.iter().flatten().sum::<f32>()]];
        for row in [vec![1.0, -2.0, 3.0], vec![0.0, 0.0], vec![5.0]] {
            let rows = [row];
            assert_eq!(verdict(each, &rows), TrialVerdict::Same, "{rows:?}");
            for model in [less_mean, running, reversed, all_in_one] {
                assert_eq!(verdict(model, &rows), TrialVerdict::Differs, "{rows:?}");
            }
        }
    }

    #[test]
    fn trial_allows_for_the_rounding_of_the_precision() {
        // Rounding that depends on the number of rows, as in products of tf32.
        let rounded = |rows: &[Vec<f32>]| {
            let off = if rows.len() > 1 { 2e-3 } else { 0.0 };
            rows.iter().map(|row| row.iter().map(|value| value * 0.01 + off).chain([1.0]).collect()).collect()
        };
        let rows = [vec![1.0, -2.0, 3.0]];
        for (precision, expected) in [
            (Precision::Fp32, TrialVerdict::Differs),
            (Precision::Tf32, TrialVerdict::Same),
            (Precision::Fp16, TrialVerdict::Same),
            (Precision::Bf16, TrialVerdict::Same),
        ] {
            assert_eq!(verdict_in(precision, rounded, &rows), expected, "{precision}");
        }
        let less_mean = |rows: &[Vec<f32>]| {
            let mean = rows.iter().flatten().sum::<f32>() / (rows.len() * rows[0].len()) as f32;
            rows.iter().map(|row| row.iter().map(|value| value - mean).collect()).collect()
        };
        assert_eq!(verdict_in(Precision::Bf16, less_mean, &rows), TrialVerdict::Differs);
    }

    #[test]
    fn binary16_values_decode() {
        let bits = [0x3c00, 0xc000, 0x3555, 0x0001, 0x7c00, 0x0000];
        let values = bits.map(half);
        assert_eq!((values[0], values[1], values[4], values[5]), (1.0, -2.0, f64::INFINITY, 0.0));
        assert!((values[2] - 1.0 / 3.0).abs() < 1e-4 && (values[3] - 5.96e-8).abs() < 1e-10);
        assert!(half(0x7e00).is_nan());
    }
}
