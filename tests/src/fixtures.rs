//! Test inputs: components built by `cargo xtask functions`, and checked-in components and models.

use bytes::Bytes;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Reads the component of a function in `functions/`.
#[must_use]
pub fn function(name: &str) -> Bytes {
    let path = function_path(name);
    let read = std::fs::read(&path);
    read.unwrap_or_else(|error| panic!("{}: {error}; build it with `cargo xtask functions`", path.display()))
        .into()
}

/// Whether a function was built. Functions in other languages need optional tools.
#[must_use]
pub fn has_function(name: &str) -> bool {
    function_path(name).is_file()
}

/// Reads a component of `tests/fixtures/components-0.1.0`.
#[must_use]
pub fn component_of_0_1_0(name: &str) -> Bytes {
    let path = repository().join("tests/fixtures/components-0.1.0").join(name).with_extension("wasm");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// Reads a model of `tests/fixtures/models`, by its path there.
#[must_use]
pub fn model(path: &str) -> Bytes {
    let path = model_path(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// Reference output of ONNX Runtime in Python for a model and the input [`made_up`]: the values of
/// its only output.
#[must_use]
pub fn output_in_python(name: &str) -> Vec<f32> {
    let path = format!("outputs/{name}.fp32");
    model(&path)
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect()
}

/// Generates the bytes of an fp32 tensor of `count` elements, with the same values as `outputs.py`.
#[must_use]
pub fn made_up(count: u32) -> Vec<u8> {
    let value = |i: u32| (u64::from(i) * 7919 % 1000) as f32 / 1000.0;
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

/// Reads the model of `classify-digits`.
#[must_use]
pub fn digits() -> Bytes {
    model("../../../functions/classify-digits/model/digits.onnx")
}

/// Reads a model that is too large for the repository, from the output of `cargo xtask models`.
#[must_use]
pub fn large_model(name: &str) -> Bytes {
    let path = repository().join(".weir/models").join(name);
    let read = std::fs::read(&path);
    read.unwrap_or_else(|error| panic!("{}: {error}; make it with `cargo xtask models`", path.display()))
        .into()
}

/// Path of a model in `tests/fixtures/models`.
#[must_use]
pub fn model_path(path: &str) -> PathBuf {
    repository().join("tests/fixtures/models").join(path)
}

/// Reads an image of `tests/fixtures/images`. The pixels of each image are those of `picture.rgb`.
#[must_use]
pub fn image(name: &str) -> Bytes {
    let path = repository().join("tests/fixtures/images").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// Lists the models in a folder of `tests/fixtures/models`, as paths relative to it.
#[must_use]
pub fn models(folder: &str) -> Vec<String> {
    let path = model_path(folder);
    let files = std::fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut models: Vec<_> =
        names.filter(|name| name.ends_with(".onnx")).map(|name| format!("{folder}/{name}")).collect();
    models.sort();
    models
}

/// Path of the ONNX Runtime that `cargo xtask setup` installs.
#[must_use]
pub fn onnxruntime() -> Option<PathBuf> {
    Some(repository().join(".weir/lib/libonnxruntime.so")).filter(|path| path.is_file())
}

/// Library folder of NVRTC, if `cargo xtask kernels` has installed it.
#[must_use]
pub fn nvrtc() -> Option<PathBuf> {
    let pythons = std::fs::read_dir(repository().join(".weir/nvrtc/lib")).ok()?;
    let folder = |python: PathBuf| python.join("site-packages/nvidia/cuda_nvrtc/lib");
    pythons.flatten().map(|entry| folder(entry.path())).find(|folder| folder.is_dir())
}

/// Command for a Python program of `tests/clients`, with the packages that `cargo xtask setup`
/// installs.
#[must_use]
pub fn python_client(program: &str) -> Command {
    let mut command = python();
    command.arg(repository().join("tests/clients").join(program));
    command
}

/// Command for Schemathesis with the settings in `tests/clients/schemathesis.toml`.
#[must_use]
pub fn schemathesis() -> Command {
    let mut command = python();
    command.args(["-m", "schemathesis.cli", "--no-color", "--config-file"]);
    command.arg(repository().join("tests/clients/schemathesis.toml"));
    command
}

/// Command for the tests of the Python client in `clients/python`, which start nodes of `weir`.
#[must_use]
pub fn python_client_tests(weir: &Path) -> Command {
    let mut command = python();
    command.args(["-m", "pytest", "-p", "no:cacheprovider"]).env("WEIR_PROGRAM", weir);
    command.envs(onnxruntime().map(|library| ("WEIR_ONNXRUNTIME", library)));
    command.current_dir(repository().join("clients/python"));
    command
}

/// Command for the Python in `.weir/clients`.
fn python() -> Command {
    let python = repository().join(".weir/clients/bin/python");
    let path = python.display();
    assert!(python.is_file(), "{path} is missing; make it with `cargo xtask setup`");
    let mut command = Command::new(&python);
    command.arg("-B").kill_on_drop(true);
    command
}

/// Appends a custom section to a component, which changes only its digest.
#[must_use]
pub fn with_custom_section(component: &[u8], content: &str) -> Bytes {
    // Id 0, the size in LEB128, and a name of one byte.
    let mut head = vec![0];
    let mut rest = content.len() + 2;
    while rest >= 128 {
        head.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    head.extend([rest as u8, 1, b'x']);
    [component, &head, content.as_bytes()].concat().into()
}

fn function_path(name: &str) -> PathBuf {
    repository().join("target/functions").join(name).with_extension("wasm")
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is in the repository")
}
