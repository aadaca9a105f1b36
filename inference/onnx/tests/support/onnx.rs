//! ONNX files that are too large to check in, encoded field by field.

/// `y = x · w1 · w2 · ...`. Each weight is a square matrix of `size`: `factors[i]` times the
/// identity matrix.
pub(crate) fn chain(size: usize, factors: &[f32]) -> Vec<u8> {
    let weight = |i: usize| format!("w{i}");
    let value = |i: usize| if i == 0 { "x".to_owned() } else { format!("y{i}") };
    let mut graph = Vec::new();
    for (i, factor) in factors.iter().enumerate() {
        let mut data = vec![0.0_f32; size * size];
        data.iter_mut().step_by(size + 1).for_each(|element| *element = *factor);
        let data: Vec<u8> = data.iter().flat_map(|element| element.to_le_bytes()).collect();
        let mut node = bytes(1, value(i).as_bytes());
        node.extend(bytes(1, weight(i).as_bytes()));
        node.extend(bytes(2, value(i + 1).as_bytes()));
        node.extend(bytes(4, b"MatMul"));
        graph.extend(bytes(1, &node));
        let mut tensor = [number(1, size as u64), number(1, size as u64), number(2, FLOAT)].concat();
        tensor.extend(bytes(8, weight(i).as_bytes()));
        tensor.extend(bytes(9, &data));
        graph.extend(bytes(5, &tensor));
    }
    graph.extend(bytes(2, b"chain"));
    graph.extend(bytes(11, &port("x", size)));
    graph.extend(bytes(12, &port(&value(factors.len()), size)));
    let opset = number(2, 17);
    [number(1, 8), bytes(7, &graph), bytes(8, &opset)].concat()
}

/// `z = operator(x, y)`, of one-dimensional int32 tensors.
pub(crate) fn on_integers(operator: &str) -> Vec<u8> {
    on_integers_of("", operator)
}

/// The same for an operator of a domain.
pub(crate) fn on_integers_of(domain: &str, operator: &str) -> Vec<u8> {
    let mut node = [bytes(1, b"x"), bytes(1, b"y"), bytes(2, b"z")].concat();
    node.extend(bytes(4, operator.as_bytes()));
    node.extend(bytes(7, domain.as_bytes()));
    let mut graph = bytes(1, &node);
    graph.extend(bytes(2, b"integers"));
    for (field, name) in [(11, "x"), (11, "y"), (12, "z")] {
        let dimension = bytes(1, &bytes(2, b"N"));
        let tensor = [number(1, INT32), bytes(2, &dimension)].concat();
        graph.extend(bytes(field, &[bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()));
    }
    let mut model = [number(1, 8), bytes(7, &graph), bytes(8, &number(2, 17))].concat();
    if !domain.is_empty() {
        model.extend(bytes(8, &[bytes(1, domain.as_bytes()), number(2, 1)].concat()));
    }
    model
}

/// Domains and names of the operators in the main graph of a model.
pub(crate) fn operators(model: &[u8]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let nodes = fields(model, 7).into_iter().flat_map(|graph| fields(graph, 1));
    let first =
        |node: &[u8], field: u64| fields(node, field).first().map(|bytes| text(bytes)).unwrap_or_default();
    nodes.map(|node| (first(node, 7), first(node, 4))).collect()
}

/// The contents of a message's fields with this number, which are bytes, text or messages.
fn fields(mut message: &[u8], number: u64) -> Vec<&[u8]> {
    fn varint<'a>(message: &mut &'a [u8]) -> u64 {
        let len = message.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let (bytes, rest): (&'a [u8], &'a [u8]) = message.split_at(len);
        *message = rest;
        bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let len = match tag & 7 {
            0 => {
                varint(&mut message);
                continue;
            }
            1 => 8,
            5 => 4,
            _ => varint(&mut message) as usize,
        };
        let (content, rest) = message.split_at(len);
        message = rest;
        if tag == number << 3 | 2 {
            found.push(content);
        }
    }
    found
}

const FLOAT: u64 = 1;
const INT32: u64 = 6;

/// A row of `size`.
fn port(name: &str, size: usize) -> Vec<u8> {
    let dimensions = [1, size as u64].map(|size| bytes(1, &number(1, size))).concat();
    let tensor = [number(1, FLOAT), bytes(2, &dimensions)].concat();
    [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
}

/// A numeric protobuf field.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A protobuf field of bytes, text or a message.
fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut all = Vec::new();
    while value >= 0x80 {
        all.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    all.push(value as u8);
    all
}
