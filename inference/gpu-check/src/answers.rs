//! Comparison of a network's answers with the reference. Errors are relative to the answers'
//! magnitude, so that zeroes in place of small numbers fail.

use crate::compare::worst_element;
use crate::outcome::{Check, Mismatch};
use weir_graph::reference::{ReferenceTensor, distance, spread};
use weir_types::Precision;

/// Adds the error of the outputs relative to the reference, and whether the reference can
/// distinguish right from wrong answers. Every item of a batch must match the reference of one
/// item.
pub(crate) fn answers(
    check: Check,
    found: &[Vec<u8>],
    expected: &[ReferenceTensor],
    precision: Precision,
) -> Check {
    let off_by = |(found, expected): (&Vec<u8>, &ReferenceTensor)| {
        worst_item(found, expected).unwrap_or(f64::INFINITY)
    };
    let all_there = if found.len() == expected.len() { 0.0 } else { f64::INFINITY };
    let tolerance = tolerance(precision);
    let check = check.off_by(found.iter().zip(expected).map(off_by).fold(all_there, f64::max), tolerance);
    let check = check.with_worst(worst(found, expected));

    let floats: Vec<Vec<f32>> = expected.iter().map(ReferenceTensor::to_floats).collect();
    if floats.iter().flatten().all(|element| *element == 0.0) {
        let detail = "the reference gives nothing but zeroes, by which nothing can be told".to_owned();
        return Check { passed: false, detail, ..check };
    }
    let are_alike = |elements: &Vec<f32>| elements.len() > 1 && spread(elements) <= tolerance;
    let detail = match check.error {
        Some(error) if !error.is_finite() => "they are not all numbers where the reference's are",
        _ if floats.iter().all(are_alike) => "most are as good as alike, by which little can be told",
        _ => "",
    };
    Check { detail: detail.to_owned(), ..check }
}

/// Returns the element with the largest error. All items of a batch have the same expected values.
fn worst(found: &[Vec<u8>], expected: &[ReferenceTensor]) -> Option<Mismatch> {
    let of_output = |(output, (found, expected)): (usize, (&Vec<u8>, &ReferenceTensor))| {
        let item_bytes = expected.to_bytes().len().max(1);
        let of_item = |(item, bytes): (usize, &[u8])| {
            let tensor = ReferenceTensor::from_bytes(expected.tensor().clone(), bytes);
            let found = tensor.map(|tensor| tensor.to_floats()).unwrap_or_default();
            let (error, at) = worst_element(&found, &expected.to_floats());
            (error, Mismatch { output, index: item * expected.tensor().elements() + at.index, ..at })
        };
        found.chunks(item_bytes).enumerate().map(of_item).max_by(|one, other| one.0.total_cmp(&other.0))
    };
    let worst = found.iter().zip(expected).enumerate().filter_map(of_output);
    worst.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, at)| at)
}

/// Returns the error of the worst item of an output; `None` if the output has a wrong length.
fn worst_item(found: &[u8], expected: &ReferenceTensor) -> Option<f64> {
    let item_bytes = expected.to_bytes().len();
    if item_bytes == 0 || found.is_empty() || !found.len().is_multiple_of(item_bytes) {
        return None;
    }
    let expected_floats = expected.to_floats();
    let off = |item| {
        Some(distance(
            &ReferenceTensor::from_bytes(expected.tensor().clone(), item)?.to_floats(),
            &expected_floats,
        ))
    };
    found.chunks(item_bytes).map(off).try_fold(0.0, |most: f64, error| Some(most.max(error?)))
}

/// Maximum error relative to the largest element; rounding errors accumulate over the layers. On
/// the fake driver, networks are at about a tenth of this limit, and in bf16 at about half.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 1e-4,
        Precision::Tf32 => 5e-3,
        Precision::Fp16 => 1e-2,
        Precision::Bf16 => 5e-2,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::*;
    use weir_graph::TensorType;
    use weir_types::ElementType;

    /// Output of a network with a thousand classes, whose elements are all small.
    fn classes(element: impl Fn(usize) -> f32) -> ReferenceTensor {
        let tensor = TensorType::new(ElementType::Fp32, [1, 1000]).unwrap_or_else(|error| panic!("{error}"));
        ReferenceTensor::floats(tensor, (0..1000).map(element).collect())
    }

    fn expected(at: usize) -> f32 {
        1e-3 + 5e-7 * (at * 7919 % 1000) as f32
    }

    fn judged(found: &ReferenceTensor, expected: &ReferenceTensor, precision: Precision) -> Check {
        let check = Check::passed(Stage::Networks, "a network");
        answers(check, &[found.to_bytes()], std::slice::from_ref(expected), precision)
    }

    #[test]
    fn errors_are_relative_to_the_magnitude_of_answers() {
        let right = classes(expected);
        for precision in Precision::ALL {
            assert!(judged(&right, &right, precision).passed);
            let wrong = [
                classes(|_| 0.0),
                classes(|_| 1e-3),
                classes(|at| expected(999 - at)),
                classes(|at| if at == 1 { 0.0 } else { expected(at) }),
                classes(|at| if at == 1 { f32::NAN } else { expected(at) }),
            ];
            let not_a_number = judged(&wrong[4], &right, precision).worst;
            assert_eq!(not_a_number.map(|at| at.index), Some(1));
            for (at, wrong) in wrong.iter().enumerate() {
                let check = judged(wrong, &right, precision);
                assert!(!check.passed && check.worst.is_some(), "{at} in {precision}: {check:?}");
            }
            let check = Check::passed(Stage::Networks, "a network");
            assert!(!answers(check, &[], std::slice::from_ref(&right), precision).passed, "none is there");
        }
    }

    #[test]
    fn degenerate_reference_is_reported() {
        let zeroes = classes(|_| 0.0);
        let check = judged(&zeroes, &zeroes, Precision::Tf32);
        assert!(!check.passed && check.detail.contains("zeroes"), "{check:?}");
        let alike = classes(|_| 1e-3);
        let check = judged(&alike, &alike, Precision::Tf32);
        assert!(check.passed && check.detail.contains("alike"), "{check:?}");
    }
}
