//! Image preprocessing for a model in a short tensor function.

use serde_json::{Value, json};
use weir_tests::{TestNode, function, has_function, model, onnxruntime};
use weir_types::ErrorCode;

const MEANS: [f64; 3] = [0.485, 0.456, 0.406];
const DEVIATIONS: [f64; 3] = [0.229, 0.224, 0.225];

async fn a_picture_is_normalised_and_seen(name: &str) {
    if onnxruntime().is_none() {
        return eprintln!("skipped: there is no ONNX Runtime; `cargo xtask setup` brings it");
    }
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = TestNode::start().await;
    node.push_model("channels", 1, model("good/channels.onnx")).await;
    node.deploy_with(name, "models=channels", function(name)).await;
    // Two rows of three pixels, so that swapped channels, rows and columns are detected.
    let pixels: Vec<u8> = (0..18).map(|at| at * 13).collect();
    let call = async |shape: Value, data: &[u8]| {
        let image = json!({"name": "image", "datatype": "UINT8", "shape": shape, "data": data});
        node.post(&format!("/fn/{name}"), json!({ "inputs": [image] }).to_string()).await
    };
    let answer: Value = call(json!([2, 3, 3]), &pixels).await.ok().json();
    let means = &answer["outputs"][0];
    assert_eq!((&means["name"], &means["shape"]), (&json!("means"), &json!([1, 3, 1, 1])));
    for (channel, (mean, deviation)) in MEANS.into_iter().zip(DEVIATIONS).enumerate() {
        let values = pixels.iter().skip(channel).step_by(3).map(|byte| f64::from(*byte) / 255.0);
        let expected = (values.sum::<f64>() / 6.0 - mean) / deviation;
        let seen = means["data"][channel].as_f64().unwrap();
        assert!((seen - expected).abs() < 1e-5, "channel {channel}: {seen} and not {expected}");
    }
    let refusal = call(json!([3, 6]), &pixels).await.refusal();
    assert_eq!(refusal.status, 400, "{}", refusal.text);
    assert!(refusal.text.contains("has to be [height, width, 3] and is [3, 6]"), "{}", refusal.text);
    node.deploy(name, function(name)).await;
    let refusal = call(json!([2, 3, 3]), &pixels).await.refusal();
    assert_eq!((refusal.status, refusal.code), (403, ErrorCode::NotGranted), "{}", refusal.text);
}

#[tokio::test]
async fn image_is_normalised_for_a_model_in_python() {
    a_picture_is_normalised_and_seen("see-image-py").await;
}

#[tokio::test]
async fn image_is_normalised_for_a_model_in_typescript() {
    a_picture_is_normalised_and_seen("see-image-ts").await;
}

#[tokio::test]
async fn image_is_normalised_for_a_model_in_go() {
    a_picture_is_normalised_and_seen("see-image-go").await;
}
