//! The Open Inference Protocol under `/v2`: what any client of it may rely on, and what bad ones are told.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use reqwest::Method;
use serde_json::{Value, json};
use std::io::Write;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_tests::{Answer, Client, Node, eventually, function, large_model, model, python_client, raw};
use weir_types::ErrorCode;

const HEADER: &str = "inference-header-content-length";

/// A node with `matmul`, versions 1 and 2, and the tensor function `echo`.
async fn node() -> Node {
    let node = Node::start().await;
    node.push_model("matmul", 1, model("good/matmul.onnx")).await;
    node.push_model("matmul", 2, model("good/matmul_v2.onnx")).await;
    node.deploy("echo", function("echo-tensor")).await;
    node
}

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A body of JSON and the bytes behind it, sent as a client would.
async fn binary(client: &Client, path: &str, json: &Value, behind: &[u8]) -> Answer {
    let json = json.to_string();
    let body = [json.as_bytes(), behind].concat();
    send(client, path, &[(HEADER, &json.len().to_string())], body).await
}

async fn send(client: &Client, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
    let request = client.request(Method::POST, path).body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.bytes().await.unwrap() }
}

/// One row for `matmul`, as binary.
fn row() -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]})
}

/// The JSON and what is behind it.
fn parts(answer: &Answer) -> (Value, Bytes) {
    let json_bytes = answer.header(HEADER).unwrap().parse().unwrap();
    let json = serde_json::from_slice(&answer.body[..json_bytes]).unwrap();
    (json, answer.body.slice(json_bytes..))
}

#[tokio::test]
async fn nvidias_client_works_unmodified() {
    let node = node().await;
    node.push_model("identity", 1, model("good/identity.onnx")).await;
    node.push_model("identity_bf16", 1, model("good/identity_bf16.onnx")).await;
    run(&node, "triton_http.py").await;
    run(&node, "triton_grpc.py").await;
}

#[tokio::test]
async fn openais_client_works_unmodified() {
    let node = Node::start().await;
    node.push_model("minilm", 1, large_model("minilm.onnx")).await;
    node.deploy_with("embed-text", "models=minilm", function("embed-text")).await;
    run(&node, "openai_embeddings.py").await;
    node.deploy("echo", function("echo-tensor")).await;
    for (body, code) in [
        ("", ErrorCode::InvalidRequest),
        ("{}", ErrorCode::InvalidRequest),
        (r#"{"model": "../x"}"#, ErrorCode::InvalidName),
        (r#"{"model": "nobody"}"#, ErrorCode::FunctionNotFound),
        (r#"{"model": "echo"}"#, ErrorCode::InvalidRequest),
    ] {
        let answer = node.post("/v1/embeddings", body).await;
        assert_eq!(answer.json::<Value>()["error"]["code"], code.as_str(), "{body}");
        assert_eq!(answer.header("weir-error"), Some(code.as_str()), "{body}");
    }
}

/// Run a program of `tests/clients`, whose tests must all pass.
async fn run(node: &Node, program: &str) {
    let url = node.url("").to_string();
    let output = python_client(program).env("WEIR_URL", url.trim_end_matches('/')).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\nRan ") && !said.contains("Ran 0 tests"), "{said}");
}

#[tokio::test]
async fn a_model_answers_in_the_form_that_is_asked_for() {
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

    // What an output asks for itself goes before.
    asked["outputs"] = json!([{"name": "y", "parameters": {"binary_data": false}}]);
    let answer = binary(&node, path, &asked, &fp32(&[1.0, 2.0, 3.0, 4.0])).await.ok();
    assert_eq!(
        (answer.header(HEADER), answer.json::<Value>()["outputs"][0]["data"].clone()),
        (None, json!([60.0, 70.0, 80.0]))
    );

    // Nothing but data.
    let answer =
        send(&node, path, &[(HEADER, "0")], fp32(&[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])).await.ok();
    let (json, behind) = parts(&answer);
    assert_eq!(
        (json["outputs"][0]["shape"].clone(), behind),
        (json!([2, 3]), fp32(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).into())
    );
}

#[tokio::test]
async fn data_is_read_right_wherever_in_the_body_it_lies() {
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
async fn a_tensor_function_takes_the_same_bodies_under_both_its_paths() {
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
async fn a_function_stands_in_front_of_a_model_of_its_name() {
    let node = node().await;
    let ask = async || {
        let body =
            json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0, 0, 0]}]});
        node.post("/v2/models/matmul/infer", body.to_string()).await.ok().json::<Value>()["outputs"][0]["name"].clone()
    };
    assert_eq!(ask().await, "y");
    // An HTTP function takes no tensors, and hides nothing.
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
async fn bodies_are_compressed_and_bombs_end_at_the_limit() {
    let node = Node::builder().set("infer_body_bytes_max", 1 << 20).start().await;
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
    node.get("/v2/health/live").await.ok();
}

#[tokio::test]
async fn bad_bodies_are_told_what_is_wrong_with_them() {
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
                "both",
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
            ("fewer elements", input(json!({"data": [1, 2, 3]})), 0, "takes 16 bytes, not 12"),
            ("more elements", input(json!({"data": [1, 2, 3, 4, 5]})), 0, "takes 16 bytes, not 20"),
            ("halves as JSON", input(json!({"datatype": "FP16", "data": [1, 2, 3, 4]})), 0, "no JSON form"),
            (
                "shared memory",
                input(json!({"parameters": {"shared_memory_region": "r"}})),
                0,
                "shared memory",
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
    let lengths =
        "POST /v2/models/matmul/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: x\r\n\r\n";
    assert_eq!(raw(&node, lengths).await.0, 400);
    binary(&node, "/v2/models/matmul/infer", &row(), &fp32(&[0.0; 4])).await.ok();
}

#[tokio::test]
async fn what_is_not_there_or_does_not_fit_has_a_status_of_its_own() {
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
        ("matmul/versions/x", x(json!([1, 4]), "FP32"), 400, ErrorCode::InvalidRequest),
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

#[tokio::test]
async fn tenants_ask_only_their_own_models() {
    let node =
        Node::builder().tokens(&["token-of-acme-0123 acme", "token-of-other-0123 other"]).start().await;
    let (acme, other) = (node.with_token("token-of-acme-0123"), node.with_token("token-of-other-0123"));
    acme.push_model("matmul", 1, model("good/matmul.onnx")).await;
    binary(&acme, "/v2/models/matmul/infer", &row(), &fp32(&[0.0; 4])).await.ok();
    for path in ["/v2/models/matmul", "/v2/models/matmul/ready", "/v2/models/matmul/stats"] {
        acme.get(path).await.ok();
        assert_eq!(other.get(path).await.status, 404, "{path}");
        assert_eq!(node.get(path).await.status, 401, "{path}");
    }
    assert_eq!(binary(&other, "/v2/models/matmul/infer", &row(), &[]).await.code(), ErrorCode::ModelNotFound);
    assert_eq!(other.post("/v2/repository/index", "").await.ok().json::<Value>(), json!([]));
    assert_eq!(other.get("/v2/models/stats").await.ok().json::<Value>(), json!({"model_stats": []}));
    assert!(!other.get("/metrics").await.ok().text().contains("matmul"));
    // gRPC says so in its own way.
    let grpc = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let live = grpc.post(node.url("/inference.GRPCInferenceService/ServerLive"));
    let live = live.header("content-type", "application/grpc").header("te", "trailers").body(vec![0; 5]);
    let refused = live.try_clone().unwrap().send().await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers()["grpc-status"].to_str().unwrap()), (200, "16"));
    let answered = live.bearer_auth("token-of-acme-0123").send().await.unwrap();
    assert_eq!(answered.bytes().await.unwrap()[..], [0, 0, 0, 0, 2, 8, 1]);
    // Probes have no tokens.
    node.get("/v2/health/ready").await.ok();
}

#[tokio::test]
async fn inferences_are_counted_under_our_names_and_those_of_dashboards() {
    let node = node().await;
    let json = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 4], "data": vec![0; 12]}]});
    node.post("/v2/models/matmul/versions/1/infer", json.to_string()).await.ok();
    assert_eq!(node.post("/v2/models/matmul/versions/1/infer", "{}").await.status, 400);
    let labels = "model=\"matmul\",version=\"1\"";
    for (name, label, count) in [
        ("nv_inference_request_success", "", 1.0),
        ("nv_inference_request_failure", "reason=\"OTHER\"", 1.0),
        ("nv_inference_count", "", 3.0),
        ("nv_inference_exec_count", "", 1.0),
        ("nv_inference_pending_request_count", "", 0.0),
        ("weir_inferences_total", "code=\"ok\"", 1.0),
        ("weir_inferences_total", "code=\"invalid-request\"", 1.0),
        ("weir_inference_seconds_count", "", 2.0),
    ] {
        let label = if label.is_empty() { labels.to_owned() } else { format!("{labels},{label}") };
        assert_eq!(node.metric(name, &label).await, count, "{name} {label}");
    }
    assert!(
        node.metric("nv_inference_request_duration_us", labels).await
            >= node.metric("nv_inference_compute_infer_duration_us", labels).await
    );
    // What functions run counts, too.
    node.deploy_with("infer", "models=matmul", function("infer")).await;
    node.post("/fn/infer/matmul:1?shape=1,4", fp32(&[0.0; 4])).await.ok();
    assert_eq!(node.metric("nv_inference_count", labels).await, 4.0);
    let stats: Value = node.get("/v2/models/matmul/versions/1/stats").await.ok().json();
    let stats = &stats["model_stats"][0];
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(4), &json!(2)));
    assert_eq!(stats["batch_stats"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_fake_backend_is_asked_the_same_way() {
    let node = Node::builder().set("backend", "fake").start().await;
    node.push_model("slow", 1, fake(60_000.0)).await;
    node.push_model("quick", 1, fake(0.0)).await;
    let described: Value = node.get("/v2/models/quick").await.ok().json();
    assert_eq!((&described["platform"], &described["inputs"][0]["shape"]), (&json!("fake"), &json!([-1, 4])));
    let answer = binary(&node, "/v2/models/quick/infer", &row(), &fp32(&[1.0, 2.0, 3.0, 4.0])).await.ok();
    assert_eq!(answer.json::<Value>()["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));

    // A timeout in microseconds ends a run, and so does a client that goes away.
    let mut asked = row();
    asked["parameters"] = json!({"timeout": 50_000});
    let late = binary(&node, "/v2/models/slow/infer", &asked, &fp32(&[0.0; 4])).await;
    assert_eq!((late.status, late.code()), (504, ErrorCode::DeadlineExceeded));
    let body = row().to_string();
    let head = format!(
        "POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\n{HEADER}: {}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
        body.len() + 16
    );
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    stream.write_all(&[head.as_bytes(), &[0; 16]].concat()).await.unwrap();
    let running = async |count| {
        eventually("the change in what runs", async || (node.status().await.running == count).then_some(()))
            .await;
    };
    running(1).await;
    drop(stream);
    running(0).await;
    let cancelled = async || {
        (node.metric("nv_inference_request_failure", "reason=\"CANCELED\"").await == 1.0).then_some(())
    };
    eventually("the count", cancelled).await;
}

fn fake(run_time_ms: f64) -> Vec<u8> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 4]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.to_string().into_bytes()
}

#[tokio::test]
async fn a_model_that_is_asked_for_makes_room_for_itself() {
    let node = Node::builder().set("backend", "fake").set("model_memory_bytes_max", 1_500).start().await;
    for name in ["a", "b"] {
        node.push_model(name, 1, fake(0.0)).await;
    }
    for name in ["a", "b", "a"] {
        binary(&node, &format!("/v2/models/{name}/infer"), &row(), &fp32(&[0.0; 4])).await.ok();
        assert_eq!(node.status().await.devices[0].resident, [format!("{name}:1")]);
    }
    node.post("/v2/repository/models/b/load", "{}").await.ok();
    assert_eq!(node.status().await.devices[0].resident, ["b:1"]);
    node.post("/v2/repository/models/b/unload", "").await.ok();
    let gone = async || node.status().await.devices[0].resident.is_empty().then_some(());
    eventually("the unload", gone).await;
    binary(&node, "/v2/models/b/infer", &row(), &fp32(&[0.0; 4])).await.ok();
}

#[tokio::test]
async fn the_most_urgent_goes_first() {
    let node = Node::builder().set("backend", "fake").set("model_slots", 1).start().await;
    node.push_model("m", 1, fake(300.0)).await;
    let ask = |priority: u32| {
        let client = node.client().clone();
        async move {
            let mut asked = row();
            asked["parameters"] = json!({"priority": priority});
            binary(&client, "/v2/models/m/infer", &asked, &fp32(&[0.0; 4])).await.ok();
            priority
        }
    };
    let waiting = async |count| {
        eventually("the wait", async || (node.status().await.devices[0].runs_waiting == count).then_some(()))
            .await;
    };
    let first = tokio::spawn(ask(0));
    eventually("the run", async || (node.status().await.running == 1).then_some(())).await;
    waiting(0).await;
    let later = tokio::spawn(ask(9));
    waiting(1).await;
    let urgent = tokio::spawn(ask(1));
    waiting(2).await;
    first.await.unwrap();
    tokio::select! {
        ended = later => panic!("{ended:?} went first"),
        ended = urgent => assert_eq!(ended.unwrap(), 1),
    }
}
