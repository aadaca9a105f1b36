//! Distance between results, relative to their magnitude: a wrong result is far off, whether the
//! numbers are 1e-6 or 1e6.

/// Largest difference between elements of `found` and `expected`, relative to the largest element
/// of `expected`. A result of all zeroes, or a constant in place of its mean, is off by nearly 1.
/// The distance is infinite where it is undefined: for different lengths, for unexpected NaN, and
/// for any other result where all zeroes are expected.
#[must_use]
pub fn distance(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let pairs =
        || found.iter().zip(expected).map(|(found, expected)| (f64::from(*found), f64::from(*expected)));
    // Infinities and NaN must match exactly, and do not count as the magnitude of the others.
    let is_same = |found: f64, expected: f64| found == expected || (found.is_nan() && expected.is_nan());
    if pairs().any(|(found, expected)| !(found - expected).is_finite() && !is_same(found, expected)) {
        return f64::INFINITY;
    }
    let finite = || pairs().filter(|(_, expected)| expected.is_finite());
    let largest = finite().fold(0.0, |largest: f64, (_, expected)| largest.max(expected.abs()));
    let off = finite().fold(0.0, |off: f64, (found, expected)| off.max((found - expected).abs()));
    match (off, largest) {
        (0.0, _) => 0.0,
        (_, 0.0) => f64::INFINITY,
        _ => off / largest,
    }
}

/// Spread of the middle eight tenths of the elements, relative to the largest. A comparison means
/// little if the spread is close to the tolerance. 0 if all elements are zero or one is not finite.
#[must_use]
pub fn spread(elements: &[f32]) -> f64 {
    let mut elements: Vec<f64> = elements.iter().map(|element| f64::from(*element)).collect();
    if elements.iter().any(|element| !element.is_finite()) {
        return 0.0;
    }
    elements.sort_unstable_by(f64::total_cmp);
    let tenth = elements.len() / 10;
    let (Some(low), Some(high)) = (elements.get(tenth), elements.iter().rev().nth(tenth)) else { return 0.0 };
    let largest = elements.iter().fold(0.0, |largest: f64, element| largest.max(element.abs()));
    if largest == 0.0 { 0.0 } else { (high - low) / largest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_relative_to_magnitude() {
        for size in [1e-6, 1.0, 1e6] {
            let expected = [0.5, -1.0, 0.25, 0.75].map(|element| element * size);
            assert!(distance(&expected, &expected) == 0.0);
            assert!((distance(&[0.0; 4], &expected) - 1.0).abs() < 1e-6);
            let mean = expected.iter().sum::<f32>() / 4.0;
            assert!(distance(&[mean; 4], &expected) > 1.0);
            let near = expected.map(|element| element * 1.001);
            assert!((distance(&near, &expected) - 1e-3).abs() < 1e-6);
            assert!(spread(&expected) > 1.0 && spread(&[size; 4]) == 0.0);
        }
    }

    #[test]
    fn unexpected_nan_has_infinite_distance() {
        assert!(distance(&[1.0], &[1.0, 2.0]).is_infinite());
        assert!(distance(&[f32::NAN, 2.0], &[1.0, 2.0]).is_infinite());
        assert!(distance(&[1.0, 2.0], &[f32::INFINITY, 2.0]).is_infinite());
        assert!(distance(&[1e-9], &[0.0]).is_infinite());
        assert!(distance(&[f32::NAN, f32::INFINITY, 2.2], &[f32::NAN, f32::INFINITY, 2.0]) < 0.11);
        assert!(distance(&[0.0], &[0.0]) == 0.0);
        assert!(spread(&[]) == 0.0 && spread(&[0.0; 3]) == 0.0 && spread(&[f32::NAN, 1.0]) == 0.0);
    }
}
