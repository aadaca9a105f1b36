use super::*;
use std::io::Read as _;
use tempfile::TempDir;

/// A field with bytes.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    [length_delimited(number, bytes.len() as u64), bytes.to_vec()].concat()
}

/// A tensor with `name` and dimensions. Its bytes are at `place`, as pairs of keys and values.
fn external(name: &str, place: &[(&str, &str)]) -> Vec<u8> {
    let pairs = place.iter().map(|(key, value)| {
        let pair = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
        field(EXTERNAL_DATA, &pair)
    });
    let pairs: Vec<u8> = pairs.flatten().collect();
    // data_type = 1, then data_location = EXTERNAL.
    [&field(1, &[2, 3])[..], &[0x10, 1], &field(NAME, name.as_bytes()), &pairs, &[0x70, 1]].concat()
}

/// The same tensor with its bytes inside.
fn inside(name: &str, bytes: &[u8]) -> Vec<u8> {
    [&field(1, &[2, 3])[..], &[0x10, 1], &field(NAME, name.as_bytes()), &field(RAW_DATA, bytes)].concat()
}

/// A model with `weights` as an initialiser, in a node's attribute and in a branch.
fn model(weights: &[Vec<u8>; 3]) -> Vec<u8> {
    let [initialiser, constant, branch] = weights;
    let attribute = |number: u32, message: &[u8]| {
        let message = field(number, message);
        field(5, &[field(1, b"a"), message].concat())
    };
    let branch = [field(2, b"branch"), field(5, branch)].concat();
    let graph = [
        field(1, &[field(4, b"Constant"), attribute(5, constant)].concat()),
        field(1, &[field(4, b"If"), attribute(6, &branch)].concat()),
        field(2, b"graph"),
        field(5, initialiser),
        field(12, b"\x0a\x01y"),
    ];
    // ir_version = 8; then a field of a fixed size, which no version has.
    let unknown = vec![0xfd, 0x3f, 1, 2, 3, 4];
    [vec![0x08, 8], field(7, &graph.concat()), unknown, field(8, b"\x10\x11")].concat()
}

/// A model with its only external weight, a whole file, at `location`.
pub(super) fn model_with_weights_in(location: &str) -> Vec<u8> {
    model(&[external("w", &[("location", location)]), inside("c", b"1"), inside("b", b"2")])
}

/// A folder with `model.onnx` and other files.
fn folder(model: &[u8], files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.onnx"), model).unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

fn embedded(folder: &TempDir) -> Result<Option<ModelParts>> {
    with_external_data(&ModelFiles::find(folder.path()).unwrap())
}

/// The error for a model with one external weight at `place`, in a folder with a weights file of 24
/// bytes.
fn error(place: &[(&str, &str)]) -> String {
    let weights = [external("w", place), inside("c", b"1"), inside("b", b"2")];
    let folder = folder(&model(&weights), &[("weights.bin", &[7; 24])]);
    embedded(&folder).unwrap_err().to_string()
}

#[test]
fn weights_of_other_files_are_embedded_wherever_they_are() {
    let data: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    let outside = [
        external("w", &[("location", "weights.bin"), ("offset", "8"), ("length", "90000")]),
        external("c", &[("location", "./more/c.bin"), ("checksum", "x")]),
        external("b", &[("location", "weights.bin"), ("offset", "99000")]),
    ];
    let folder = folder(&model(&outside), &[("weights.bin", &data), ("more/c.bin", b"constant")]);
    let expected =
        model(&[inside("w", &data[8..90_008]), inside("c", b"constant"), inside("b", &data[99_000..])]);
    let parts = embedded(&folder).unwrap().expect("it has weights in other files");
    assert_eq!(parts.length_bytes(), expected.len() as u64);
    let mut sent = Vec::new();
    parts.reader().read_to_end(&mut sent).unwrap();
    assert!(sent == expected, "{} bytes", sent.len());
}

#[test]
fn other_files_are_sent_as_they_are() {
    let whole = model(&["w", "c", "b"].map(|name| inside(name, b"123")));
    for bytes in
        [&whole[..], &whole[..whole.len() - 1], b"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"text"]
    {
        assert!(embedded(&folder(bytes, &[])).unwrap().is_none(), "{bytes:?}");
    }
}

#[test]
fn nesting_is_limited() {
    let leaf = field(5, &external("w", &[("location", "weights.bin")]));
    let nested = |levels| (0..levels).fold(leaf.clone(), |graph, _| field(1, &field(5, &field(6, &graph))));
    for (levels, is_embedded) in [(30, true), (40, false)] {
        let folder = folder(&field(7, &nested(levels)), &[("weights.bin", b"1")]);
        assert_eq!(embedded(&folder).unwrap().is_some(), is_embedded, "{levels}");
    }
}

#[test]
fn weights_outside_the_folder_are_refused() {
    for location in ["/etc/passwd", "../weights.bin", "more/../../weights.bin", ""] {
        let text = error(&[("location", location)]);
        assert!(text.contains("outside the model's folder") && text.contains("\"w\""), "{text}");
    }
}

#[test]
fn missing_and_incomplete_files_are_named() {
    assert!(error(&[("location", "nowhere.bin")]).contains("nowhere.bin, which has weight \"w\""));
    assert!(error(&[("offset", "0")]).contains("does not say where"));
    for place in [
        [("offset", "8"), ("length", "17")],
        [("offset", "25"), ("length", "0")],
        [("offset", "18446744073709551615"), ("length", "18446744073709551615")],
    ] {
        let text = error(&[&[("location", "weights.bin")][..], &place].concat());
        assert!(text.contains("weights.bin has 24 bytes") && text.contains("beyond its end"), "{text}");
    }
    assert!(error(&[("location", "weights.bin"), ("offset", "25")]).contains("beyond its end"));
}

#[test]
fn models_above_the_limit_of_onnx_are_refused() {
    let weights = ["w", "c", "b"].map(|name| external(name, &[("location", "weights.bin")]));
    let folder = folder(&model(&weights), &[]);
    // A sparse file.
    let file = std::fs::File::create(folder.path().join("weights.bin")).unwrap();
    file.set_len(MODEL_BYTES_MAX / 3).unwrap();
    let text = embedded(&folder).unwrap_err().to_string();
    assert!(text.contains("an ONNX file has at most 2.00 GiB"), "{text}");
}

#[test]
fn file_that_became_shorter_is_an_error() {
    let weights = ["w", "c", "b"].map(|name| external(name, &[("location", "weights.bin")]));
    let folder = folder(&model(&weights), &[("weights.bin", b"123")]);
    let parts = embedded(&folder).unwrap().unwrap();
    std::fs::write(folder.path().join("weights.bin"), b"1").unwrap();
    let error = parts.reader().read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("became shorter"), "{error}");
}

#[test]
fn folder_needs_one_onnx_file() {
    let folder = folder(b"", &[("weights.bin", b"")]);
    let found = |path: &Path| ModelFiles::find(path).map(|files| files.model.to_string());
    assert!(found(folder.path()).unwrap().ends_with("model.onnx"));
    assert!(found(&folder.path().join("weights.bin")).unwrap().ends_with("weights.bin"));
    std::fs::write(folder.path().join("other.ONNX"), "").unwrap();
    let error = found(folder.path()).unwrap_err().to_string();
    assert!(error.contains("has 2 .onnx files") && error.contains("other.ONNX"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert!(found(empty.path()).unwrap_err().to_string().contains("has no .onnx file"));
}
