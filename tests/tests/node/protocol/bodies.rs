//! Body formats of requests and responses.

use super::{HEADER, binary, fp32, node, parts, row, send};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use std::io::Write;
use weir_tests::{TestNode, function, model};
use weir_types::ErrorCode;

#[tokio::test]
async fn model_responds_in_the_requested_format() {
    let node = node().await;
    let path = "/v2/models/matmul/versions/1/infer";
    let plain = json!({"id": "7", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}]});
    let answer = node.post(path, plain.to_string()).await.ok();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let expected = json!({
        "model_name": "matmul", "model_version": "1", "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [60.0, 70.0, 80.0]}],
    });
    assert_eq!(answer.json::<Value>(), expected);

    let mut asked = row();
    asked["parameters"] = json!({"binary_data_output": true});
    let answer = binary(&node, path, &asked, &fp32(&[1.0, 2.0, 3.0, 4.0])).await.ok();
    let (json, behind) = parts(&answer);
    assert_eq!(
        json["outputs"],
        json!([{"name": "y", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}])
    );
    assert_eq!(behind, fp32(&[60.0, 70.0, 80.0]));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));

    // The setting of an output overrides the request's setting.
    asked["outputs"] = json!([{"name": "y", "parameters": {"binary_data": false}}]);
    let answer = binary(&node, path, &asked, &fp32(&[1.0, 2.0, 3.0, 4.0])).await.ok();
    assert_eq!(
        (answer.header(HEADER), answer.json::<Value>()["outputs"][0]["data"].clone()),
        (None, json!([60.0, 70.0, 80.0]))
    );

    // A body of raw data only.
    let answer =
        send(&node, path, &[(HEADER, "0")], fp32(&[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])).await.ok();
    let (json, behind) = parts(&answer);
    assert_eq!(
        (json["outputs"][0]["shape"].clone(), behind),
        (json!([2, 3]), fp32(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).into())
    );
}

#[tokio::test]
async fn binary_data_is_read_at_any_alignment() {
    let node = node().await;
    for pad in 0..9 {
        let mut asked = row();
        asked["id"] = "x".repeat(pad).into();
        let answer =
            binary(&node, "/v2/models/matmul/versions/1/infer", &asked, &fp32(&[0.0, 0.0, 0.0, 1.0]))
                .await
                .ok();
        assert_eq!(answer.json::<Value>()["outputs"][0]["data"], json!([9.0, 10.0, 11.0]));
    }
}

#[tokio::test]
async fn tensor_function_accepts_equal_bodies_on_both_paths() {
    let node = node().await;
    let asked = json!({
        "inputs": [{"name": "h", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}],
        "outputs": [{"name": "h", "parameters": {"binary_data": true}}],
    });
    for path in ["/v2/models/echo/infer", "/v2/models/echo/versions/1/infer", "/fn/echo"] {
        let answer = binary(&node, path, &asked, &[1, 2, 3, 4]).await.ok();
        let (json, behind) = parts(&answer);
        assert_eq!((json["model_name"].clone(), &behind[..]), ("echo".into(), &[1, 2, 3, 4][..]), "{path}");
    }
    assert_eq!(node.metric("weir_invocations_total", "function=\"echo\"").await, 3.0);
}

#[tokio::test]
async fn tensor_function_shadows_a_model_of_the_same_name() {
    let node = node().await;
    let ask = async || {
        let body =
            json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0, 0, 0]}]});
        node.post("/v2/models/matmul/infer", body.to_string()).await.ok().json::<Value>()["outputs"][0]["name"].clone()
    };
    assert_eq!(ask().await, "y");
    // An HTTP function takes no tensors, and does not hide a model.
    node.deploy("matmul", function("hello")).await;
    assert_eq!(ask().await, "y");
    node.deploy("matmul", function("echo-tensor")).await;
    assert_eq!(ask().await, "x");
    let index: Vec<Value> = node.post("/v2/repository/index", "").await.ok().json();
    assert_eq!(index.iter().filter(|model| model["name"] == "matmul").count(), 1, "{index:?}");
    node.delete("/v1/functions/matmul").await.ok();
    assert_eq!(ask().await, "y");
}

#[tokio::test]
async fn compressed_bodies_work_and_decompression_is_limited() {
    let node = TestNode::builder().set("gateway.infer_body_bytes_max", 1 << 20).start().await;
    node.push_model("matmul", 1, model("good/matmul.onnx")).await;
    let path = "/v2/models/matmul/infer";
    let rows = 1_000;
    let json = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": rows * 16}}]});
    let json = json.to_string();
    let plain = [json.as_bytes(), &vec![0; rows * 16]].concat();
    let gzip = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zlib = |bytes: &[u8]| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let json_bytes = json.len().to_string();
    for (encoding, body) in [("gzip", gzip(&plain)), ("deflate", zlib(&plain))] {
        let headers = [(HEADER, json_bytes.as_str()), ("content-encoding", encoding)];
        let asked = [&headers[..], &[("accept-encoding", encoding)]].concat();
        let answer = send(&node, path, &asked, body.clone()).await.ok();
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        let listed = [&headers[..], &[("accept-encoding", "gzip, deflate, br")]].concat();
        assert_eq!(send(&node, path, &listed, body.clone()).await.ok().header("content-encoding"), None);
        let cut = send(&node, path, &headers, body[..body.len() / 2].to_vec()).await;
        assert_eq!((cut.status, cut.code()), (400, ErrorCode::InvalidRequest), "{encoding}");
    }
    for (encoding, bomb) in [("gzip", gzip(&vec![b' '; 16 << 20])), ("deflate", zlib(&vec![b' '; 16 << 20]))]
    {
        assert!(bomb.len() < 1 << 20);
        let answer = send(&node, path, &[("content-encoding", encoding)], bomb).await;
        assert_eq!((answer.status, answer.code()), (413, ErrorCode::BodyTooLarge), "{encoding}");
    }
    for encoding in ["br", "zstd", "gzip, gzip", "nonsense"] {
        let answer = send(&node, path, &[("content-encoding", encoding)], plain.clone()).await;
        assert_eq!((answer.status, answer.code()), (400, ErrorCode::InvalidRequest), "{encoding}");
    }
    let large = send(&node, path, &[(HEADER, "0")], vec![0; (1 << 20) + 16]).await;
    assert_eq!((large.status, large.code()), (413, ErrorCode::BodyTooLarge));
    assert!(large.text().contains("gateway.infer_body_bytes_max"), "{}", large.text());
    node.get("/v2/health/live").await.ok();
}
