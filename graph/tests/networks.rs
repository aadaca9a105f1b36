//! Whole networks, run by the reference: against the outputs that come with them, and fused as not fused.

mod support;

use prost::Message as _;
use support::{TensorProto, difference, file, floats, model, run, shape};

/// One of the networks that the `onnx` package carries, on the input that goes with the output that it carries, too.
fn light(name: &str) {
    let model = model(&format!(".weir/models/light_{name}.onnx"));
    assert!(model.unsupported().is_empty());
    let dims = [1, 3, 224, 224];
    let count = 3.0 * 224.0 * 224.0;
    let input = floats(&dims, |at| at as f32 / count);
    let expected =
        TensorProto::decode(file(&format!(".weir/models/light_{name}_output_0.pb"))).unwrap().floats();
    let plain = model.specialise(&[shape(&dims)]).unwrap();
    let fused = plain.clone().fuse().unwrap();
    let found = run(&model, &fused, &[input]).remove(0).to_floats();
    let worst = difference(&found, &expected);
    println!(
        "{name}: {} nodes, {} fused, {} in the prologue, {worst:e} off",
        plain.nodes.len(),
        fused.nodes.len(),
        fused.prologue_len
    );
    assert!(worst < 1e-3, "{name}: {worst:e}");
}

macro_rules! light {
    ($($name:ident)*) => {
        $(#[test] fn $name() { light(stringify!($name)); })*
    };
}

light! { bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512 }
