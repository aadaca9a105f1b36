//! Named objects: storage, grants and limits.

use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;

async fn node() -> TestNode {
    TestNode::start().await
}

async fn put(client: &TestClient, name_and_query: &str, data: &[u8]) -> Value {
    client.put(&format!("/v1/objects/{name_and_query}"), data.to_vec()).await.ok().json()
}

async fn data(client: &TestClient, name: &str) -> Answer {
    client.get(&format!("/v1/objects/{name}/data")).await
}

#[tokio::test]
async fn objects_are_tensors_that_survive_a_restart() {
    let node = node().await;
    let values = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
    let kept = put(&node, "scores?datatype=FP32&shape=1,2&ttl_ms=3600000", &values).await;
    assert_eq!(
        (&kept["datatype"], &kept["shape"], &kept["bytes"]),
        (&json!("FP32"), &json!([1, 2]), &json!(8))
    );
    assert_eq!(kept["expires_at_ms"].as_u64(), kept["put_at_ms"].as_u64().map(|at_ms| at_ms + 3_600_000));
    let plain = put(&node, "a", b"hello").await;
    assert_eq!((&plain["datatype"], &plain["shape"]), (&json!("UINT8"), &json!([5])));
    let listed: Value = node.get("/v1/objects").await.ok().json();
    assert_eq!(listed, json!([plain, kept]));

    let node = node.stop().await.start().await;
    let shown: Value = node.get("/v1/objects/scores").await.ok().json();
    assert_eq!(shown, kept);
    let answer = data(&node, "scores").await.ok();
    assert_eq!(answer.body[..], values[..]);
    assert_eq!([answer.header("weir-datatype"), answer.header("weir-shape")], [Some("FP32"), Some("1,2")]);
    assert_eq!(node.metric("weir_object_gets_total", "from=\"disk\"").await, 1.0);
    assert_eq!(data(&node, "scores").await.ok().body[..], values[..]);
    assert_eq!(node.metric("weir_object_gets_total", "from=\"memory\"").await, 1.0);

    assert_eq!(node.delete("/v1/objects/scores").await.status, 204);
    for gone in [node.delete("/v1/objects/scores").await, data(&node, "scores").await] {
        assert_eq!((gone.status, gone.code()), (404, ErrorCode::ObjectNotFound));
    }
}

#[tokio::test]
async fn expired_object_is_deleted_with_its_file() {
    let node = node().await;
    put(&node, "brief?ttl_ms=1", b"data").await;
    let files = || std::fs::read_dir(node.data().join("objects")).unwrap().count();
    let is_gone = async || (data(&node, "brief").await.status == 404 && files() == 0).then_some(());
    eventually("the removal of the object", is_gone).await;
    assert_eq!(node.get("/v1/objects").await.ok().json::<Value>(), json!([]));
}

#[tokio::test]
async fn invalid_objects_are_rejected_with_a_reason() {
    let builder = TestNode::builder().set("objects.object_bytes_max", 8).set("objects.tenant_len_max", 1);
    let node = builder.set("objects.tenant_bytes_max", 8).start().await;
    for (name_and_query, bytes, status, code, text) in [
        ("a..b", 1, 400, ErrorCode::InvalidName, "must not contain '..'"),
        ("Upper", 1, 400, ErrorCode::InvalidName, "'U'"),
        ("x?shape=2,2", 3, 400, ErrorCode::InvalidRequest, "takes 4 bytes, not 3"),
        ("x?shape=1,-2", 3, 400, ErrorCode::InvalidRequest, "\"-2\" is no size"),
        ("x?shape=4294967295,4294967295,4294967295", 3, 400, ErrorCode::InvalidRequest, "more elements"),
        ("x?datatype=FP33", 3, 400, ErrorCode::InvalidRequest, "FP33"),
        ("x?datatype=FP32", 3, 400, ErrorCode::InvalidRequest, "takes 0 bytes, not 3"),
        ("x?datatype=BYTES", 3, 400, ErrorCode::InvalidRequest, "say how many"),
        ("x?datatype=BYTES&shape=1", 3, 400, ErrorCode::InvalidRequest, "strings"),
        ("x?datatype=BOOL", 3, 400, ErrorCode::InvalidRequest, "must be 0 or 1"),
        ("x?ttl_ms=0", 3, 400, ErrorCode::InvalidRequest, "ttl_ms_max"),
        ("x?ttl_ms=-1", 3, 400, ErrorCode::InvalidRequest, "ttl_ms"),
        ("x?tll_ms=1", 3, 400, ErrorCode::InvalidRequest, "takes datatype="),
        ("x", 9, 413, ErrorCode::BodyTooLarge, "objects.object_bytes_max"),
    ] {
        let refusal = node.put(&format!("/v1/objects/{name_and_query}"), vec![7; bytes]).await.refusal();
        assert_eq!((refusal.status, refusal.code), (status, code), "{name_and_query}: {}", refusal.text);
        assert!(refusal.text.contains(text), "{name_and_query}: {}", refusal.text);
    }
    put(&node, "x", &[7; 8]).await;
    let refusal = node.put("/v1/objects/y", vec![7; 1]).await.refusal();
    assert_eq!((refusal.status, refusal.code), (507, ErrorCode::ObjectsFull), "{}", refusal.text);
    put(&node, "x", &[8; 8]).await;
}

#[tokio::test]
async fn functions_access_only_granted_objects() {
    let node = node().await;
    let grants = "objects.read=shared-*,thresholds&objects.write=shared-*";
    node.deploy_with("objects", grants, function("objects")).await;
    put(&node, "thresholds", b"0.5").await;
    assert_eq!(node.get("/fn/objects/thresholds").await.ok().text(), "0.5");
    assert_eq!(node.put("/fn/objects/shared-1", "of a function").await.status, 204);
    assert_eq!(data(&node, "shared-1").await.ok().text(), "of a function");
    // A later call reads the object in a new instance.
    assert_eq!(node.get("/fn/objects/shared-1").await.ok().text(), "of a function");

    put(&node, "secret", b"of others").await;
    for (answer, status, text) in [
        (node.get("/fn/objects/secret").await, 403, "objects.read"),
        (node.get("/fn/objects/nothing").await, 403, "objects.read"),
        (node.put("/fn/objects/thresholds", "1").await, 403, "objects.write"),
        (node.delete("/fn/objects/thresholds").await, 403, "objects.write"),
        (node.get("/fn/objects/shared-2").await, 404, "there is no object shared-2"),
        (node.get("/fn/objects/UPPER").await, 400, "'U'"),
        (node.put("/fn/objects/shared-1?ttl_ms=0", "x").await, 400, "ttl_ms_max"),
    ] {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(text), "{}", answer.text());
    }
    assert_eq!(data(&node, "shared-1").await.ok().text(), "of a function");
    assert_eq!(node.delete("/fn/objects/shared-1").await.status, 204);
    assert_eq!(data(&node, "shared-1").await.status, 404);
}

#[tokio::test]
async fn inferences_read_and_write_objects() {
    let node = node().await;
    node.deploy("echo", function("echo-tensor")).await;
    let values = [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
    put(&node, "x", &values).await;
    let region = |name: &str| json!({"shared_memory_region": name});
    let part = json!({"shared_memory_region": "x", "shared_memory_offset": 4, "shared_memory_byte_size": 8});
    let infer = async |parameters: &Value, shape: Value, outputs: Value| {
        let x = json!({"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters});
        let body = json!({"inputs": [x], "outputs": outputs}).to_string();
        node.post("/v2/models/echo/infer", body).await
    };
    let answer: Value = infer(&region("x"), json!([2, 2]), json!([])).await.ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));
    let kept = json!([{"name": "x", "parameters": region("y")}]);
    let answer: Value = infer(&part, json!([1, 2]), kept).await.ok().json();
    let given = json!({"shared_memory_region": "y", "shared_memory_byte_size": 8});
    assert_eq!((&answer["outputs"][0]["parameters"], &answer["outputs"][0]["data"]), (&given, &Value::Null));
    let answer = data(&node, "y").await.ok();
    assert_eq!(answer.body[..], values[4..12]);
    assert_eq!([answer.header("weir-datatype"), answer.header("weir-shape")], [Some("FP32"), Some("1,2")]);

    let beyond =
        json!({"shared_memory_region": "x", "shared_memory_offset": 12, "shared_memory_byte_size": 8});
    let far =
        json!({"shared_memory_region": "x", "shared_memory_offset": u64::MAX, "shared_memory_byte_size": 8});
    for (parameters, outputs, status, text) in [
        (region("nothing"), json!([]), 404, "input \"x\": there is no object nothing"),
        (beyond, json!([]), 400, "has 16 bytes, and 8 bytes from 12 on are asked for"),
        (far, json!([]), 400, "has 16 bytes"),
        (part.clone(), json!([{"name": "x", "parameters": region("Y")}]), 400, "output \"x\": a name"),
        (
            part.clone(),
            json!([{"name": "x", "parameters": {"shared_memory_region": "y", "shared_memory_byte_size": 7}}]),
            400,
            "it has 8 bytes, and shared_memory_byte_size is 7",
        ),
    ] {
        let refusal = infer(&parameters, json!([2]), outputs).await.refusal();
        assert_eq!(refusal.status, status, "{}", refusal.text);
        assert!(refusal.text.contains(text), "{}", refusal.text);
    }
    let refusal = infer(&region("x"), json!([3]), json!([])).await.refusal();
    assert!(refusal.status == 400 && refusal.text.contains("takes 12 bytes, not 16"), "{}", refusal.text);
}

#[tokio::test]
async fn objects_are_separate_per_tenant() {
    let node =
        TestNode::builder().tokens(&["one-token-of-16-chars one", "two-token-of-16-chars two"]).start().await;
    let one = node.with_token("one-token-of-16-chars");
    let two = node.with_token("two-token-of-16-chars");
    put(&one, "mine", b"one's").await;
    put(&two, "mine", b"two's").await;
    put(&one, "other", b"one's").await;
    assert_eq!(data(&one, "mine").await.ok().text(), "one's");
    assert_eq!(data(&two, "mine").await.ok().text(), "two's");
    assert_eq!(data(&two, "other").await.code(), ErrorCode::ObjectNotFound);
    assert_eq!(two.delete("/v1/objects/other").await.code(), ErrorCode::ObjectNotFound);
    assert_eq!(data(&one, "other").await.ok().text(), "one's");
}

#[tokio::test]
async fn objects_command_puts_shows_and_gets_objects() {
    let node = node().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.bin");
    let copy = folder.path().join("copy.bin");
    std::fs::write(&file, [0, 0, 128, 63].repeat(6)).unwrap();
    let file = file.to_str().unwrap();
    let copy = copy.to_str().unwrap();
    assert!(node.weir(&["objects"]).await.unwrap().contains("weir objects put NAME FILE"));
    let put = ["objects", "put", "w", file, "--datatype", "fp32", "--shape", "2,3", "--ttl-ms", "60000"];
    assert!(node.weir(&put).await.unwrap().contains("FP32[2, 3]"));
    assert!(node.weir(&["objects", "list"]).await.unwrap().contains("FP32[2, 3]   24 B"));
    let shown: Value =
        serde_json::from_str(&node.weir(&["--json", "objects", "show", "w"]).await.unwrap()).unwrap();
    assert_eq!(shown["shape"], json!([2, 3]));
    node.weir(&["objects", "get", "w", "-o", copy]).await.unwrap();
    assert_eq!(std::fs::read(copy).unwrap(), std::fs::read(file).unwrap());
    node.weir(&["objects", "rm", "w"]).await.unwrap();
    let error = node.weir(&["objects", "get", "w"]).await.unwrap_err();
    assert!(error.contains("there is no object w"), "{error}");
    let error = node.weir(&["objects", "put", "w", file, "--datatype", "fp33"]).await.unwrap_err();
    assert!(error.contains("FP32"), "{error}");
}
