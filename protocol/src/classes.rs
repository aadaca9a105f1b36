//! The largest elements of an output in place of the output: the protocol's classification extension.

use weir_types::{ElementType, Shape};

/// Strings `value:index`, the largest element first: for each row of a tensor with more than one dimension, or for all of one with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// The rows, and how many classes each has.
    pub shape: Shape,
    /// The strings, as a `BYTES` tensor.
    pub data: Vec<u8>,
}

/// Why an output has no largest elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("classification is for numbers of up to 64 bits, not for {0}")]
pub struct ClassError(pub ElementType);

impl Classes {
    /// The `count` largest of each row of `data`, which fits its type and shape.
    pub fn of(datatype: ElementType, shape: &Shape, data: &[u8], count: u32) -> Result<Self, ClassError> {
        macro_rules! largest {
            ($type:ty, $format:literal) => {{
                let values = data.as_chunks().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes));
                let values: Vec<$type> = values.collect();
                rows(shape, &values, count, |value| format!($format, value))
            }};
        }
        Ok(match datatype {
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
                return Err(ClassError(other));
            }
        })
    }
}

fn rows<T: PartialOrd + Copy>(
    shape: &Shape,
    values: &[T],
    count: u32,
    print: impl Fn(T) -> String,
) -> Classes {
    let dimensions = shape.dimensions();
    let rows = if dimensions.len() > 1 { dimensions.first().copied() } else { None };
    let row_len = values.len() / rows.map_or(1, |rows| rows.max(1) as usize);
    let count = row_len.min(count as usize);
    let mut data = Vec::new();
    for row in values.chunks(row_len.max(1)) {
        let mut places: Vec<usize> = (0..row.len()).collect();
        // What is no number goes last; of equals the first goes first.
        let larger = |a: &usize, b: &usize| {
            let (a, b) = (row[*a], row[*b]);
            let is_nan = |value: T| value.partial_cmp(&value).is_none();
            b.partial_cmp(&a).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
        };
        places.sort_by(larger);
        for place in places.into_iter().take(count) {
            let text = format!("{}:{place}", print(row[place]));
            data.extend_from_slice(&(text.len() as u32).to_le_bytes());
            data.extend_from_slice(text.as_bytes());
        }
    }
    // No dimension is larger than one of the tensor's, whose number of elements was checked.
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let shape = match rows {
        Some(rows) => Shape::new(&[rows, count]),
        None => Shape::new(&[count]),
    };
    Classes { shape: shape.unwrap_or_default(), data }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(classes: &Classes) -> Vec<String> {
        let (mut data, mut texts) = (&classes.data[..], Vec::new());
        while let Some((length, rest)) = data.split_first_chunk::<4>() {
            let (text, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            texts.push(String::from_utf8(text.to_vec()).unwrap());
            data = rest;
        }
        texts
    }

    fn floats(shape: &[u32], values: &[f32], count: u32) -> Classes {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Classes::of(ElementType::Fp32, &Shape::new(shape).unwrap(), &data, count).unwrap()
    }

    #[test]
    fn the_largest_come_first_in_every_row() {
        let classes = floats(&[2, 3], &[0.1, 0.7, 0.2, 3.0, f32::NAN, 3.0], 2);
        assert_eq!(texts(&classes), ["0.700000:1", "0.200000:2", "3.000000:0", "3.000000:2"]);
        assert_eq!(classes.shape.dimensions(), [2, 2]);
        let all = floats(&[2], &[1.0, -1.0], 9);
        assert_eq!(
            (texts(&all), all.shape.dimensions()),
            (vec!["1.000000:0".into(), "-1.000000:1".into()], &[2][..])
        );
        assert_eq!(floats(&[0, 3], &[], 2).shape.dimensions(), [0, 0]);
    }

    #[test]
    fn integers_stay_integers_and_strings_have_no_order() {
        let shape = Shape::new(&[2]).unwrap();
        let classes = Classes::of(ElementType::Int8, &shape, &[1, 255], 1).unwrap();
        assert_eq!(texts(&classes), ["1:0"]);
        assert_eq!(Classes::of(ElementType::Bool, &shape, &[1, 0], 1), Err(ClassError(ElementType::Bool)));
    }
}
