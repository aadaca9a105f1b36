//! `{{ name }}` maps tensors to tensors: it scales `x` into 0 to 1 as `y`. Call it with
//!
//! ```text
//! curl -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 4]}]}' http://127.0.0.1:9347/fn/{{ name }}
//! ```

use weir::{Result, Tensor, Tensors};

fn run(inputs: Tensors) -> Result<Tensors> {
    let x = inputs.get("x")?;
    let scaled = scale(&x.to_vec::<f32>()?);
    Ok(Tensors::from([("y", Tensor::from_slice(&scaled, x.shape())?)]))
}

fn scale(values: &[f32]) -> Vec<f32> {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = if high > low { high - low } else { 1.0 };
    values.iter().map(|value| (value - low) / range).collect()
}

weir::tensor_function!(run);

#[cfg(test)]
mod tests {
    #[test]
    fn values_come_out_between_0_and_1() {
        assert_eq!(super::scale(&[1.0, 2.0, 5.0]), [0.0, 0.25, 1.0]);
        assert_eq!(super::scale(&[3.0]), [0.0]);
    }
}
