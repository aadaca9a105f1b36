//! ONNX models generated for tests, because they are too large for the repository.

/// Encodes an ONNX model whose weights have `rows` rows of 4 KiB, filled with `value`: y \[n, 32,
/// 32\] = x \[n, 32, 32\] + weights\[row \[1\]\] + more \[32, 32\].
#[must_use]
pub fn model_with_rows(rows: usize, value: f32) -> Vec<u8> {
    let dims = [rows as u64, 32, 32].map(|dim| number(1, dim)).concat();
    let data = value.to_le_bytes().repeat(rows * 1024);
    let weights = [dims, number(2, 1), field(8, b"weights"), field(9, &data)].concat();
    let graph = [
        node("Gather", &["weights", "row"], "chosen"),
        node("Add", &["x", "chosen"], "sum"),
        node("Add", &["sum", "more"], "y"),
        field(2, b"large"),
        field(5, &weights),
        field(11, &port("x", 1, &[0, 32, 32])),
        field(11, &port("row", 7, &[1])),
        field(11, &port("more", 1, &[32, 32])),
        field(12, &port("y", 1, &[0, 32, 32])),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &number(2, 17))].concat()
}

/// Encodes an ONNX model `z = operator(x, y)` of one-dimensional int32 tensors. `Div` and `Mod` of
/// the least integer by -1 end the process that runs them.
#[must_use]
pub fn model_on_integers(operator: &str) -> Vec<u8> {
    let graph = [
        node(operator, &["x", "y"], "z"),
        field(2, b"integers"),
        field(11, &port("x", 6, &[0])),
        field(11, &port("y", 6, &[0])),
        field(12, &port("z", 6, &[0])),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &number(2, 17))].concat()
}

/// Encodes an ONNX model y = x + `value` of one-dimensional fp32 tensors.
#[must_use]
pub fn model_adding(value: f32) -> Vec<u8> {
    let data = field(9, &value.to_le_bytes());
    let weight = [number(1, 1), number(2, 1), field(8, b"value"), data].concat();
    let graph = [
        node("Add", &["x", "value"], "y"),
        field(2, b"adding"),
        field(5, &weight),
        field(11, &port("x", 1, &[0])),
        field(12, &port("y", 1, &[0])),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &number(2, 17))].concat()
}

/// Encodes a length-delimited protobuf field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        field.push(u8::try_from(len & 0x7f).expect("seven bits") | 0x80);
        len >>= 7;
    }
    field.push(u8::try_from(len).expect("seven bits"));
    field.extend_from_slice(bytes);
    field
}

/// Encodes a varint protobuf field.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![field << 3];
    let mut value = value;
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).expect("seven bits"));
    bytes
}

/// Encodes an input or output of a graph. A dimension of 0 is dynamic.
fn port(name: &str, element: u64, dims: &[u64]) -> Vec<u8> {
    let dim = |dim: &u64| field(1, &if *dim == 0 { field(2, b"n") } else { number(1, *dim) });
    let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
    let tensor = [number(1, element), field(2, &shape)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

fn node(operator: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
    field(1, &[inputs, field(2, output.as_bytes()), field(4, operator.as_bytes())].concat())
}
