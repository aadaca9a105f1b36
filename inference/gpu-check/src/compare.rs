//! Errors of results.

use crate::outcome::Mismatch;

/// Returns the error of the worst element of `found`, relative to the expected value or to 1,
/// whichever is larger. A NaN has an infinite error.
pub(crate) fn worst(found: &[f32], expected: &[f32]) -> f64 {
    worst_element(found, expected).0
}

/// Returns the error and position of the worst element. If the lengths differ, the position is the
/// first index that one list lacks.
pub(crate) fn worst_element(found: &[f32], expected: &[f32]) -> (f64, Mismatch) {
    let at = |index: usize| {
        let element = |of: &[f32]| of.get(index).map_or(f64::NAN, |element| f64::from(*element));
        Mismatch { output: 0, index, expected: element(expected), found: element(found) }
    };
    if found.len() != expected.len() {
        return (f64::INFINITY, at(found.len().min(expected.len())));
    }
    let mut worst = (0.0, 0);
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = relative_error(*found, *expected);
        if off > worst.0 {
            worst = (off, index);
        }
    }
    (worst.0, at(worst.1))
}

fn relative_error(found: f32, expected: f32) -> f64 {
    if found == expected || (found.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let found = f64::from(found);
    let expected = f64::from(expected);
    let off = (found - expected).abs() / expected.abs().max(1.0);
    if off.is_nan() { f64::INFINITY } else { off }
}

#[cfg(test)]
mod tests {
    use super::{worst, worst_element};

    #[test]
    fn nan_has_infinite_error() {
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!([worst(&[wrong, 1.0], &[1.0; 2]), worst(&[1.0, wrong], &[1.0; 2])] == [f64::INFINITY; 2]);
            assert!(worst(&[wrong], &[wrong]) == 0.0);
        }
        assert!(worst(&[1.0], &[]).is_infinite());
    }

    #[test]
    fn worst_element_has_index_and_both_values() {
        let (error, at) = worst_element(&[1.0, 2.5, 8.0], &[1.0, 2.0, 4.0]);
        assert_eq!((error, at.index, at.found, at.expected), (1.0, 2, 8.0, 4.0));
        let (error, at) = worst_element(&[1.0, f32::NAN, 9.0], &[1.0, 2.0, 4.0]);
        assert!(error.is_infinite() && at.index == 1 && at.found.is_nan());
    }
}
