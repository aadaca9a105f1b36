//! Comparison of the outputs of two versions of a model.

use weir_inference::Tensor;
use weir_types::ElementType;

/// The largest difference of equal floats, relative to the output of the active version.
const RELATIVE_MAX: f64 = 1e-3;
/// The largest difference of equal floats close to zero.
const ABSOLUTE_MAX: f64 = 1e-5;

/// Whether the outputs have the same names, types, shapes and values, with a tolerance for floats.
pub(super) fn are_equal(active: &[(String, Tensor)], shadow: &[(String, Tensor)]) -> bool {
    active.len() == shadow.len()
        && active.iter().all(|(name, expected)| {
            let other = shadow.iter().find(|(other, _)| other == name);
            other.is_some_and(|(_, actual)| is_equal(expected, actual))
        })
}

fn is_equal(expected: &Tensor, actual: &Tensor) -> bool {
    if expected.element_type() != actual.element_type() || expected.shape() != actual.shape() {
        return false;
    }
    let data = (&expected.data()[..], &actual.data()[..]);
    if data.0 == data.1 {
        return true;
    }
    match expected.element_type() {
        ElementType::Fp32 => are_close(data, |bytes| f64::from(f32::from_le_bytes(bytes))),
        ElementType::Fp64 => are_close(data, f64::from_le_bytes),
        ElementType::Fp16 => are_close(data, |bytes| fp16(u16::from_le_bytes(bytes))),
        ElementType::Bf16 => {
            are_close(data, |bytes| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)))
        }
        _ => false,
    }
}

fn are_close<const N: usize>((expected, actual): (&[u8], &[u8]), value: impl Fn([u8; N]) -> f64) -> bool {
    let expected = expected.as_chunks::<N>().0.iter();
    let actual = actual.as_chunks::<N>().0.iter();
    expected.zip(actual).all(|(expected, actual)| is_close(value(*expected), value(*actual)))
}

fn is_close(expected: f64, actual: f64) -> bool {
    let is_same = expected.to_bits() == actual.to_bits() || (expected.is_nan() && actual.is_nan());
    let allowed = ABSOLUTE_MAX + RELATIVE_MAX * expected.abs();
    // An infinite difference exceeds every finite limit.
    is_same || (expected.is_finite() && (expected - actual).abs() <= allowed)
}

/// The value of an IEEE 754 binary16 number.
fn fp16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from((bits >> 10) & 0x1f);
    let fraction = f64::from(bits & 0x3ff) / 1024.0;
    sign * match exponent {
        0 => fraction * 2_f64.powi(-14),
        0x1f if fraction > 0.0 => f64::NAN,
        0x1f => f64::INFINITY,
        _ => (1.0 + fraction) * 2_f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use weir_types::Shape;

    fn tensor(element_type: ElementType, data: Vec<u8>) -> Vec<(String, Tensor)> {
        let len = data.len() / element_type.size_bytes().unwrap();
        let shape = Shape::new(&[u32::try_from(len).unwrap()]).unwrap();
        vec![("y".to_owned(), Tensor::new(element_type, shape, Bytes::from(data).into()).unwrap())]
    }

    fn floats(values: &[f32]) -> Vec<(String, Tensor)> {
        tensor(ElementType::Fp32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    #[test]
    fn floats_are_equal_within_the_tolerance() {
        let expected = floats(&[1.0, -100.0, 0.0, f32::NAN, f32::INFINITY]);
        assert!(are_equal(&expected, &floats(&[1.000_9, -100.09, 0.000_009, f32::NAN, f32::INFINITY])));
        for other in [
            [1.002, -100.0, 0.0, f32::NAN, f32::INFINITY],
            [1.0, -100.0, 0.000_02, f32::NAN, f32::INFINITY],
            [1.0, -100.0, 0.0, 0.0, f32::INFINITY],
            [1.0, -100.0, 0.0, f32::NAN, 1.0],
            [1.0, -100.0, 0.0, f32::NAN, f32::NEG_INFINITY],
        ] {
            assert!(!are_equal(&expected, &floats(&other)), "{other:?}");
        }
    }

    #[test]
    fn other_types_names_and_shapes_are_compared_exactly() {
        let integers = |values: [i32; 2]| {
            tensor(ElementType::Int32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        };
        assert!(are_equal(&integers([1, 2]), &integers([1, 2])));
        assert!(!are_equal(&integers([1, 100_000]), &integers([1, 100_001])));
        assert!(!are_equal(&integers([1, 2]), &floats(&[1.0, 2.0])));
        assert!(!are_equal(&floats(&[1.0]), &floats(&[1.0, 1.0])));
        let mut renamed = floats(&[1.0]);
        renamed[0].0 = "z".to_owned();
        assert!(!are_equal(&floats(&[1.0]), &renamed));
        assert!(!are_equal(&floats(&[1.0]), &[]));
    }

    #[test]
    fn half_precision_is_decoded() {
        for (bits, value) in [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65_504.0), (0x0001, 2_f64.powi(-24))] {
            assert!((fp16(bits) - value).abs() < f64::EPSILON, "{bits:x}");
        }
        assert!(fp16(0x7e00).is_nan() && fp16(0xfc00) == f64::NEG_INFINITY);
        let half = |bits: u16| tensor(ElementType::Fp16, bits.to_le_bytes().into());
        assert!(are_equal(&half(0x3c00), &half(0x3c00)) && !are_equal(&half(0x3c00), &half(0x3c02)));
        let bf16 = |bits: u16| tensor(ElementType::Bf16, bits.to_le_bytes().into());
        assert!(!are_equal(&bf16(0x3f80), &bf16(0x3f81)), "one step of bf16 is 0.8 %");
    }
}
