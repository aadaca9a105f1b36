//! Classification extension of the protocol: the largest elements of an output, sent instead of the
//! output.

use std::cmp::Ordering;
use weir_types::{ElementType, Labels, Shape};

/// Largest number of classes per row.
pub const CLASSES_MAX: u32 = 1_000;

/// Classes as strings `value:index`, or `value:index:label` of elements with a label, largest first.
/// A tensor with two or more dimensions has one list per row; other tensors have one list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// Shape of the strings: rows, if any, and classes per row.
    pub shape: Shape,
    /// The strings, as a `BYTES` tensor.
    pub data: Vec<u8>,
}

/// Reason why an output cannot be classified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// The element type has no meaningful order.
    #[error("classification is for numbers of 8 to 64 bits that JSON knows, not for {0}")]
    Type(ElementType),
    /// The requested number of classes is too large.
    #[error("classification gives at most {CLASSES_MAX} classes, not {0}")]
    TooMany(u32),
    /// The classes exceed the size limit.
    #[error("the classes take more than {0} bytes")]
    TooLarge(usize),
}

impl Classes {
    /// Finds the `count` largest elements of each row of `data`, in at most `bytes_max` bytes.
    /// `data` must fit its type and shape. `labels` are those of a row.
    pub fn new(
        datatype: ElementType,
        shape: &Shape,
        data: &[u8],
        labels: Option<&Labels>,
        count: u32,
        bytes_max: usize,
    ) -> Result<Self, ClassError> {
        if count > CLASSES_MAX {
            return Err(ClassError::TooMany(count));
        }
        macro_rules! largest {
            ($type:ty, $format:literal) => {{
                let values = data.as_chunks().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes));
                rows(shape, values, count, bytes_max, |value, index| {
                    match labels.and_then(|labels| labels.get(index)) {
                        Some(label) => format!(concat!($format, ":{}:{}"), value, index, label),
                        None => format!(concat!($format, ":{}"), value, index),
                    }
                })
            }};
        }
        match datatype {
            ElementType::Uint8 => largest!(u8, "{}"),
            ElementType::Uint16 => largest!(u16, "{}"),
            ElementType::Uint32 => largest!(u32, "{}"),
            ElementType::Uint64 => largest!(u64, "{}"),
            ElementType::Int8 => largest!(i8, "{}"),
            ElementType::Int16 => largest!(i16, "{}"),
            ElementType::Int32 => largest!(i32, "{}"),
            ElementType::Int64 => largest!(i64, "{}"),
            ElementType::Fp32 => largest!(f32, "{:.6}"),
            ElementType::Fp64 => largest!(f64, "{:.6}"),
            other @ (ElementType::Bool | ElementType::Fp16 | ElementType::Bf16 | ElementType::Bytes) => {
                Err(ClassError::Type(other))
            }
        }
    }
}

fn rows<T: PartialOrd + Copy>(
    shape: &Shape,
    mut values: impl ExactSizeIterator<Item = T>,
    count: u32,
    bytes_max: usize,
    print: impl Fn(T, usize) -> String,
) -> Result<Classes, ClassError> {
    let rows = match shape.dimensions() {
        [rows, _, ..] => Some(*rows),
        _ => None,
    };
    let row_len = values.len() / rows.map_or(1, |rows| rows.max(1) as usize);
    let count = u32::try_from(row_len).map_or(count, |len| len.min(count));
    let mut data = Vec::new();
    while values.len() > 0 && count > 0 {
        let row = values.by_ref().take(row_len).enumerate();
        for (index, value) in largest(row, count as usize) {
            let text = print(value, index);
            let length = u32::try_from(text.len()).map_err(|_| ClassError::TooLarge(bytes_max))?;
            data.extend_from_slice(&length.to_le_bytes());
            data.extend_from_slice(text.as_bytes());
            if data.len() > bytes_max {
                return Err(ClassError::TooLarge(bytes_max));
            }
        }
    }
    let shape = match rows {
        Some(rows) => Shape::new(&[rows, count]),
        None => Shape::new(&[count]),
    };
    // Two u32 dimensions always form a valid shape.
    Ok(Classes { shape: shape.unwrap_or_default(), data })
}

/// The `count` largest elements of `row`, largest first, with equal elements in their order. Holds
/// at most twice `count` elements, for rows of any length.
fn largest<T: PartialOrd + Copy>(row: impl Iterator<Item = (usize, T)>, count: usize) -> Vec<(usize, T)> {
    let mut kept: Vec<(usize, T)> = Vec::new();
    let cut = |kept: &mut Vec<(usize, T)>| {
        kept.sort_by(|(_, a), (_, b)| larger_first(a, b));
        kept.truncate(count);
    };
    for item in row {
        kept.push(item);
        if kept.len() == 2 * count {
            cut(&mut kept);
        }
    }
    cut(&mut kept);
    kept
}

/// Orders larger values first and NaN last.
fn larger_first<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    let is_nan = |value: &T| value.partial_cmp(value).is_none();
    b.partial_cmp(a).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(classes: &Classes) -> Vec<String> {
        let mut data = &classes.data[..];
        let mut texts = Vec::new();
        while let Some((length, rest)) = data.split_first_chunk::<4>() {
            let (text, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            texts.push(String::from_utf8(text.to_vec()).unwrap());
            data = rest;
        }
        texts
    }

    fn floats(shape: &[u32], values: &[f32], count: u32) -> Classes {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Classes::new(ElementType::Fp32, &Shape::new(shape).unwrap(), &data, None, count, 1 << 20).unwrap()
    }

    #[test]
    fn labels_follow_the_index_of_their_element() {
        let labels = Labels::from_lines("cat\n\nlong: dog");
        let shape = Shape::new(&[2, 4]).unwrap();
        let data = [1, 2, 3, 4, 9, 0, 0, 0];
        let classes = Classes::new(ElementType::Uint8, &shape, &data, Some(&labels), 4, 1 << 10).unwrap();
        let rows = ["4:3", "3:2:long: dog", "2:1", "1:0:cat", "9:0:cat", "0:1", "0:2:long: dog", "0:3"];
        assert_eq!(texts(&classes), rows);
        let longest = Classes::new(ElementType::Uint8, &shape, &data, Some(&labels), 2, 30);
        assert_eq!(longest, Err(ClassError::TooLarge(30)));
    }

    #[test]
    fn largest_elements_come_first_in_every_row() {
        let classes = floats(&[2, 3], &[0.1, 0.7, 0.2, 3.0, f32::NAN, 3.0], 2);
        assert_eq!(texts(&classes), ["0.700000:1", "0.200000:2", "3.000000:0", "3.000000:2"]);
        assert_eq!(classes.shape.dimensions(), [2, 2]);
        let all = floats(&[2], &[1.0, -1.0], 9);
        assert_eq!(texts(&all), ["1.000000:0", "-1.000000:1"]);
        assert_eq!(all.shape.dimensions(), [2]);
        assert_eq!(floats(&[0, 3], &[], 2).shape.dimensions(), [0, 0]);
        assert_eq!(texts(&floats(&[], &[2.0], 1)), ["2.000000:0"]);
    }

    #[test]
    fn long_row_returns_its_largest_elements() {
        let values: Vec<f32> = (0..1_000).map(|n| (n * 7_919 % 1_000) as f32).collect();
        let best = texts(&floats(&[1_000], &values, 3));
        let places = [999.0, 998.0, 997.0].map(|value| values.iter().position(|v| *v == value).unwrap());
        assert_eq!(best, std::array::from_fn::<_, 3, _>(|n| format!("{}.000000:{}", 999 - n, places[n])));
    }

    #[test]
    fn unsupported_classification_returns_an_error() {
        let shape = Shape::new(&[2]).unwrap();
        let of =
            |datatype, count, bytes_max| Classes::new(datatype, &shape, &[1, 255], None, count, bytes_max);
        assert_eq!(texts(&of(ElementType::Int8, 1, 100).unwrap()), ["1:0"]);
        assert_eq!(of(ElementType::Bool, 1, 100), Err(ClassError::Type(ElementType::Bool)));
        assert_eq!(of(ElementType::Uint8, 1_001, 100), Err(ClassError::TooMany(1_001)));
        assert_eq!(of(ElementType::Uint8, 2, 10), Err(ClassError::TooLarge(10)));
    }
}
