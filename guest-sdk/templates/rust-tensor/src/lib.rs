//! `{{ name }}` maps tensors to tensors: it scales `x` into 0 to 1 as `y`. Call it with
//!
//! ```text
//! curl -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 4]}]}' http://127.0.0.1:9347/fn/{{ name }}
//! ```

use exports::weir::inference::stage::Guest;
use weir::inference::tensors::{ElementType, Error, Tensor};

wit_bindgen::generate!({ path: "wit", world: "weir:inference/tensor-function", generate_all });

struct Function;

export!(Function);

impl Guest for Function {
    fn run(inputs: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>, Error> {
        let x = inputs.iter().find(|(name, _)| name == "x").map(|(_, tensor)| tensor);
        let x = x.ok_or_else(|| Error::InvalidArgument("input x is missing".to_owned()))?;
        if x.element_type() != ElementType::Fp32 {
            return Err(Error::InvalidArgument(format!("input x must be FP32, not {:?}", x.element_type())));
        }
        let bytes = x.read(0, x.byte_length())?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        let scaled: Vec<u8> = scale(&values).into_iter().flat_map(f32::to_le_bytes).collect();
        Ok(vec![("y".to_owned(), Tensor::from_bytes(ElementType::Fp32, &x.shape(), &scaled)?)])
    }
}

fn scale(values: &[f32]) -> Vec<f32> {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = if high > low { high - low } else { 1.0 };
    values.iter().map(|value| (value - low) / range).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_come_out_between_0_and_1() {
        assert_eq!(super::scale(&[1.0, 2.0, 5.0]), [0.0, 0.25, 1.0]);
        assert_eq!(super::scale(&[3.0]), [0.0]);
    }
}
