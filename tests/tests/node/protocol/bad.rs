//! Errors for invalid bodies and unknown names.

use super::{HEADER, binary, fp32, node, row, send};
use serde_json::{Value, json};
use weir_tests::{function, raw};
use weir_types::ErrorCode;

#[tokio::test]
async fn invalid_bodies_are_rejected_with_a_reason() {
    let node = node().await;
    let input = |more: Value| {
        let mut input = json!({"name": "x", "datatype": "FP32", "shape": [1, 4]});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"inputs": [input]})
    };
    let sized = |bytes: u64| input(json!({"parameters": {"binary_data_size": bytes}}));
    for path in ["/v2/models/matmul/infer", "/v2/models/echo/infer", "/fn/echo"] {
        for (what, json, behind, text) in [
            ("fewer bytes than said", sized(16), 8, "8 bytes of the body are left"),
            ("more bytes than said", sized(16), 20, "4 bytes are left over"),
            ("a size beyond all", sized(u64::MAX), 16, "bytes of the body are left"),
            ("fewer bytes than the shape", sized(12), 12, "takes 16 bytes, not 12"),
            ("no data", input(json!({})), 0, "neither `data` nor"),
            (
                "data twice",
                input(json!({"data": [1, 2, 3, 4], "parameters": {"binary_data_size": 16}})),
                16,
                "more than one of",
            ),
            (
                "an overflowing shape",
                input(json!({"shape": [u32::MAX, u32::MAX, u32::MAX], "data": []})),
                0,
                "more elements",
            ),
            ("too many dimensions", input(json!({"shape": vec![1; 17], "data": [1]})), 0, "16 dimensions"),
            ("a negative dimension", input(json!({"shape": [-1, 4], "data": [1]})), 0, "invalid value"),
            ("an unknown type", input(json!({"datatype": "FP31", "data": [1]})), 0, "unknown variant"),
            ("text for numbers", input(json!({"data": ["a", "b", "c", "d"]})), 0, "is not FP32"),
            ("fewer elements", input(json!({"data": [1, 2, 3]})), 0, "has 4 elements, and its data has 3"),
            (
                "more elements",
                input(json!({"data": [1, 2, 3, 4, 5]})),
                0,
                "has 4 elements, and its data has 5",
            ),
            ("halves as JSON", input(json!({"datatype": "FP16", "data": [1, 2, 3, 4]})), 0, "no JSON form"),
            (
                "data and an object",
                input(json!({"data": [1, 2, 3, 4], "parameters": {"shared_memory_region": "r"}})),
                0,
                "leave one",
            ),
            (
                "strings that end early",
                input(json!({"datatype": "BYTES", "parameters": {"binary_data_size": 6}})),
                6,
                "strings",
            ),
            (
                "a BOOL of 7",
                input(json!({"datatype": "BOOL", "parameters": {"binary_data_size": 4}})),
                4,
                "must be 0 or 1",
            ),
            ("no inputs", json!({}), 0, "missing field"),
            ("a list", json!([]), 0, "not an inference request"),
            ("a wrong parameter", json!({"parameters": {"priority": -1}, "inputs": []}), 0, "invalid value"),
            (
                "too many inputs",
                json!({"inputs": vec![json!({"name": "a", "datatype": "FP32", "shape": [0], "data": []}); 1_025]}),
                0,
                "more than 1024",
            ),
            (
                "an input twice",
                json!({"inputs": vec![json!({"name": "a", "datatype": "FP32", "shape": [0], "data": []}); 2]}),
                0,
                "given twice",
            ),
        ] {
            let answer = binary(&node, path, &json, &vec![7; behind]).await;
            let refusal = answer.refusal();
            assert_eq!((refusal.status, refusal.code), (400, ErrorCode::InvalidRequest), "{what}");
            assert!(refusal.text.contains(text), "{path}, {what}: {}", refusal.text);
        }
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        for depth in [101, 100_000] {
            let body = format!(
                r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,4],"data":{}}}]}}"#,
                nested(depth)
            );
            let refusal = node.post(path, body).await.refusal();
            assert!(refusal.status == 400 && refusal.text.contains("nested"), "{}", refusal.text);
        }
        for header in ["99999", "-1", "x", "18446744073709551616"] {
            let answer = send(&node, path, &[(HEADER, header)], row().to_string().into_bytes()).await;
            assert_eq!((answer.status, answer.code()), (400, ErrorCode::InvalidRequest), "{header}");
        }
        for body in ["", "not json", "{\"inputs\":[", "\0"] {
            assert_eq!(node.post(path, body).await.code(), ErrorCode::InvalidRequest, "{body:?}");
        }
    }
    let lengths = "POST /v2/models/matmul/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: x\r\n\r\n";
    assert_eq!(raw(&node, lengths).await.0, 400);
    binary(&node, "/v2/models/matmul/infer", &row(), &fp32(&[0.0; 4])).await.ok();
}

#[tokio::test]
async fn unknown_names_and_mismatched_inputs_have_distinct_errors() {
    let node = node().await;
    node.deploy("page", function("hello")).await;
    let x = |shape: Value, datatype: &str| {
        let count: u64 = shape.as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).product();
        json!({"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": vec![0; count as usize]}]})
    };
    for (path, body, status, code) in [
        ("nobody", x(json!([1, 4]), "FP32"), 404, ErrorCode::ModelNotFound),
        ("page", x(json!([1, 4]), "FP32"), 404, ErrorCode::ModelNotFound),
        ("matmul/versions/9", x(json!([1, 4]), "FP32"), 404, ErrorCode::VersionNotFound),
        ("echo/versions/9", x(json!([1, 4]), "FP32"), 404, ErrorCode::VersionNotFound),
        ("matmul/versions/x", x(json!([1, 4]), "FP32"), 404, ErrorCode::VersionNotFound),
        ("NotAName", x(json!([1, 4]), "FP32"), 400, ErrorCode::InvalidName),
        ("matmul", x(json!([1, 5]), "FP32"), 400, ErrorCode::InvalidRequest),
        ("matmul", x(json!([4]), "FP32"), 400, ErrorCode::InvalidRequest),
        ("matmul", x(json!([1, 4]), "INT64"), 400, ErrorCode::InvalidRequest),
        ("matmul", json!({"inputs": []}), 400, ErrorCode::InvalidRequest),
    ] {
        let answer = node.post(&format!("/v2/models/{path}/infer"), body.to_string()).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{path} {body}");
    }
    let get = node.get("/v2/models/matmul/infer").await;
    assert_eq!((get.status, get.code()), (405, ErrorCode::MethodNotAllowed));
    assert_eq!(node.get("/v2/nothing").await.code(), ErrorCode::RouteNotFound);
    for path in
        ["/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/models/matmul/generate"]
    {
        let answer = node.get(path).await;
        assert_eq!((answer.status, answer.code()), (501, ErrorCode::NotSupported), "{path}");
    }
}
