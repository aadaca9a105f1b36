//! Running workflows: results, branches, deadlines and errors.

use super::{asked, deploy, fake_node, infer, pending, rows, step, workflow};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_tests::{TestClient, TestNode, eventually, function, model};
use weir_types::ErrorCode;

/// Two matrix products of the rows, and their sum.
const SUM: &str = r#"
description = "the sum of two products"
inputs = { rows = "FP32[2, 4]" }

[steps.low]
run = "matmul"
inputs = { x = "rows" }

[steps.high]
run = "matmul_v2"
inputs = { x = "rows" }

[steps.sum]
run = "add"
inputs = { a = "low", b = "high.y" }

[outputs]
sum = "sum"
low = "low.y"
"#;

async fn sum_node() -> TestNode {
    let node = TestNode::start().await;
    for name in ["matmul", "matmul_v2", "add"] {
        node.push_model(name, 1, model(&format!("good/{name}.onnx"))).await;
    }
    deploy(&node, "sum", SUM).await.ok();
    node
}

fn sum_rows() -> Value {
    json!({"inputs": [{"name": "rows", "datatype": "FP32", "shape": [2, 4], "data": [1, 0, 0, 0, 0, 0, 0, 1]}]})
}

#[tokio::test]
async fn workflow_of_models_is_called_like_a_model() {
    let node = sum_node().await;
    let answer: Value = infer(&node, "sum", &sum_rows()).await.ok().json();
    assert_eq!((&answer["model_name"], &answer["model_version"]), (&json!("sum"), &json!("1")));
    let outputs = &answer["outputs"];
    assert_eq!(
        (&outputs[0]["name"], &outputs[0]["data"]),
        (&json!("low"), &json!([0.0, 1.0, 2.0, 9.0, 10.0, 11.0]))
    );
    assert_eq!(
        (&outputs[1]["name"], &outputs[1]["shape"], &outputs[1]["data"]),
        (&json!("sum"), &json!([2, 3]), &json!([10.0, 12.0, 14.0, 28.0, 30.0, 32.0]))
    );

    // Unrequested outputs and the steps that only they need are not computed.
    let mut wanted = sum_rows();
    wanted["outputs"] = json!([{"name": "low", "parameters": {"classification": 1}}]);
    let answer: Value = infer(&node, "sum", &wanted).await.ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(["2.000000:2", "11.000000:2"]));
    assert_eq!(
        (asked(&node, "matmul").await, asked(&node, "add").await, asked(&node, "sum").await),
        (2.0, 1.0, 2.0)
    );

    // Other endpoints of a model.
    let metadata: Value = node.get("/v2/models/sum").await.ok().json();
    assert_eq!(
        metadata,
        json!({
            "name": "sum", "versions": ["1"], "platform": "weir_workflow",
            "inputs": [{"name": "rows", "datatype": "FP32", "shape": [2, 4]}],
            "outputs": [
                {"name": "low", "datatype": "FP32", "shape": [2, 3]},
                {"name": "sum", "datatype": "FP32", "shape": [2, 3]},
            ],
        })
    );
    node.get("/v2/models/sum/versions/1/ready").await.ok();
    let config: Value = node.get("/v2/models/sum/config").await.ok().json();
    assert_eq!((&config["backend"], &config["input"][0]["dims"]), (&json!("weir"), &json!([2, 4])));
    let stats: Value = node.get("/v2/models/sum/stats").await.ok().json();
    assert_eq!(stats["model_stats"][0]["inference_count"], json!(4));
    let index: Value = node.post("/v2/repository/index", "").await.ok().json();
    let entry = index.as_array().unwrap().iter().find(|entry| entry["name"] == "sum").unwrap();
    assert_eq!(entry["state"], "READY");

    // A body of raw data is the only input.
    let data: Vec<u8> =
        [1_f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let request = node.request(reqwest::Method::POST, "/v2/models/sum/infer");
    let raw = request.header("inference-header-content-length", "0").body(data).send().await.unwrap();
    assert!(raw.status().is_success(), "{raw:?}");
}

#[tokio::test]
async fn shape_errors_name_the_input_or_step() {
    let node = sum_node().await;
    let mut request = sum_rows();
    request["inputs"][0]["name"] = json!("x");
    let refused = infer(&node, "sum", &request).await.refusal();
    assert_eq!((refused.status, refused.code), (400, ErrorCode::InvalidRequest));
    assert!(refused.text.contains("no input \"x\"; its inputs are rows: FP32[2, 4]"), "{}", refused.text);

    // Only the run shows that three rows are one too many.
    deploy(&node, "sum", &SUM.replace("[2, 4]", "[n, 4]")).await.ok();
    let three =
        json!({"inputs": [{"name": "rows", "datatype": "FP32", "shape": [3, 4], "data": vec![0; 12]}]});
    let refused = infer(&node, "sum", &three).await.refusal();
    assert_eq!((refused.status, refused.code), (400, ErrorCode::InvalidRequest));
    assert!(
        refused.text.starts_with("step low: its output y is FP32[3, 3], where the workflow needs FP32[2, 3]")
            || refused.text.starts_with("step high: its output y is FP32[3, 3]"),
        "{}",
        refused.text
    );
}

/// Three branches and their mean.
fn ensemble() -> String {
    let branches: String = ["a", "b", "c"].iter().map(|name| step(name, name, "x")).collect();
    workflow(&format!("{branches}[steps.mean]\ncombine = \"mean\"\nof = [\"a\", \"b\", \"c\"]"), "mean")
}

async fn all_pending(node: &TestClient, count: f64) {
    eventually("the change of the pending runs", async || {
        for name in ["a", "b", "c"] {
            (pending(node, name).await == count).then_some(())?;
        }
        (node.status().await.devices[0].runs_waiting == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn branches_run_concurrently_and_end_on_client_disconnect() {
    let node = fake_node(&[], &["a", "b", "c"]).await;
    deploy(&node, "ensemble", &ensemble()).await.ok();
    let body = rows(&[0.0; 4]).to_string();
    let head = format!(
        "POST /v2/models/ensemble/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    // No branch ends alone, so all three must run concurrently.
    all_pending(&node, 1.0).await;
    assert_eq!(node.status().await.running, 1);
    drop(stream);
    all_pending(&node, 0.0).await;
    for name in ["a", "b", "c", "ensemble"] {
        let cancelled = async || {
            let labels = format!("model=\"{name}\",reason=\"CANCELED\"");
            let metrics = node.metrics().await;
            let count = metrics.iter().find(|(sample, _)| {
                sample.starts_with("nv_inference_request_failure")
                    && labels.split(',').all(|label| sample.contains(label))
            });
            (count.map(|(_, count)| *count) == Some(1.0)).then_some(())
        };
        eventually("the count of the cancelled run", cancelled).await;
    }
    eventually("the end of the placement", async || (node.status().await.running == 0).then_some(())).await;
}

#[tokio::test]
async fn deadline_error_names_the_step() {
    let node = fake_node(&["quick"], &["a", "b", "c"]).await;
    deploy(&node, "ensemble", &ensemble()).await.ok();
    let mut request = rows(&[0.0; 4]);
    request["parameters"] = json!({"timeout": 50_000});
    let late = infer(&node, "ensemble", &request).await.refusal();
    assert_eq!((late.status, late.code), (504, ErrorCode::DeadlineExceeded));
    assert!(late.text.starts_with("step "), "{}", late.text);
    all_pending(&node, 0.0).await;

    let steps = step("first", "quick", "x") + &step("second", "a", "first");
    deploy(&node, "sequence", &workflow(&steps, "second")).await.ok();
    // Enough for the first step on a busy machine; the second never ends.
    request["parameters"] = json!({"timeout": 2_000_000});
    let late = infer(&node, "sequence", &request).await.refusal();
    assert!(late.code == ErrorCode::DeadlineExceeded && late.text.starts_with("step second: "), "{late:?}");
    assert_eq!(asked(&node, "quick").await, 1.0);
}

#[tokio::test]
async fn switch_runs_the_step_whose_condition_holds() {
    let node = fake_node(&["small", "large"], &[]).await;
    let steps = format!(
        "{}{}when = \"confidence(small) < 0.5\"\n[steps.surer]\ncombine = \"best\"\nof = [\"small\", \"large\"]",
        step("small", "small", "x"),
        step("large", "large", "x"),
    );
    deploy(&node, "cascade", &workflow(&steps, "surer")).await.ok();
    for (values, asked_large) in [([0.75_f32, 0.0, 0.0, 0.0], 0.0), ([0.25, 0.25, 0.0, 0.0], 1.0)] {
        let answer: Value = infer(&node, "cascade", &rows(&values)).await.ok().json();
        assert_eq!(answer["outputs"][0]["data"], json!(values));
        assert_eq!(asked(&node, "large").await, asked_large);
    }
    // The least confident row decides.
    infer(&node, "cascade", &rows(&[0.75, 0.0, 0.0, 0.0, 0.125, 0.125, 0.125, 0.125])).await.ok();
    assert_eq!((asked(&node, "small").await, asked(&node, "large").await), (3.0, 2.0));
}

#[tokio::test]
async fn tensor_is_split_over_branches_and_concatenated() {
    let node = fake_node(&["a", "b"], &[]).await;
    let steps = format!(
        "[steps.halves]\nsplit = \"x\"\nparts = 2\n{}{}[steps.whole]\ncombine = \"concat\"\nof = [\"left\", \"right\"]",
        step("left", "a", "halves.0"),
        step("right", "b", "halves.1"),
    );
    deploy(&node, "split", &workflow(&steps, "whole")).await.ok();
    let values: Vec<f32> = (0_u8..12).map(f32::from).collect();
    let answer: Value = infer(&node, "split", &rows(&values)).await.ok().json();
    assert_eq!(
        (&answer["outputs"][0]["shape"], &answer["outputs"][0]["data"]),
        (&json!([3, 4]), &json!(values))
    );
    // A single row goes to one branch.
    let answer: Value = infer(&node, "split", &rows(&values[..4])).await.ok().json();
    assert_eq!(answer["outputs"][0]["shape"], json!([1, 4]));
    assert_eq!((asked(&node, "a").await, asked(&node, "b").await), (2.0, 1.0));
    let stats: Value = node.get("/v2/models/a/stats").await.ok().json();
    assert_eq!(stats["model_stats"][0]["inference_count"], json!(3));
}

#[tokio::test]
async fn functions_and_workflows_can_be_steps() {
    let node = fake_node(&["m"], &[]).await;
    node.deploy("echo", function("echo-tensor")).await;
    let echo = |name: &str, declared: &str| {
        format!(
            "[steps.{name}]\nrun = \"echo\"\ninputs = {{ y = \"x\" }}\noutputs = {{ y = \"{declared}\" }}\n"
        )
    };
    let inner = workflow(&(echo("f", "FP32[n, 4]") + &step("m", "m", "f")), "m");
    deploy(&node, "inner", &inner).await.ok();
    let outer = workflow(&(step("first", "inner", "x") + &step("second", "inner", "first")), "second");
    deploy(&node, "outer", &outer).await.ok();
    let answer: Value = infer(&node, "outer", &rows(&[1.0, 2.0, 3.0, 4.0])).await.ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));
    for name in ["m", "echo", "inner"] {
        assert_eq!(asked(&node, name).await, 2.0, "{name}");
    }
    assert_eq!(node.metric("weir_invocations_total", "code=\"ok\"").await, 2.0);

    // A function whose output differs from the workflow's declaration.
    deploy(&node, "wrong", &workflow(&echo("f", "FP32[n, 5]"), "f")).await.ok();
    let wrong = infer(&node, "wrong", &rows(&[0.0; 4])).await.refusal();
    assert_eq!((wrong.status, wrong.code), (502, ErrorCode::GuestError));
    assert_eq!(wrong.text, "step f: its output y is FP32[1, 4], where the workflow needs FP32[1, 5]");
    let missing = echo("f", "FP32[n, 4]").replace("outputs = { y", "outputs = { z");
    deploy(&node, "missing", &workflow(&missing, "f")).await.ok();
    let missing = infer(&node, "missing", &rows(&[0.0; 4])).await.refusal();
    assert_eq!(
        (missing.code, missing.text.as_str()),
        (ErrorCode::GuestError, "step f: it gave no output \"z\"")
    );
    // Errors of nested steps have the full path.
    deploy(&node, "nest", &workflow(&step("in", "wrong", "x"), "in")).await.ok();
    let nested = infer(&node, "nest", &rows(&[0.0; 4])).await.refusal();
    assert!(nested.text.starts_with("step in: step f: its output y"), "{}", nested.text);
    // Everything has ended.
    let idle = async || (node.status().await.running == 0).then_some(());
    eventually("the end of all calls", idle).await;
}

#[tokio::test]
async fn functions_can_open_workflows_like_models() {
    let node = fake_node(&["m", "other"], &["slow"]).await;
    deploy(&node, "pipe", &workflow(&(step("a", "m", "x") + &step("b", "m", "a")), "b")).await.ok();
    node.deploy_with("infer", "models=pipe", function("infer")).await;
    let values: Vec<u8> = [1_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    for path in ["pipe", "pipe:1"] {
        let answer = node.post(&format!("/fn/infer/{path}?shape=1,4"), values.clone()).await.ok();
        assert_eq!(&answer.body[..], &values[..], "{path}");
    }
    assert_eq!((asked(&node, "pipe").await, asked(&node, "m").await), (2.0, 4.0));
    assert_eq!(node.post("/fn/infer/pipe:2?shape=1,4", values.clone()).await.status, 404);
    // The grant covers the workflow, but not its models.
    assert_eq!(node.post("/fn/infer/m?shape=1,4", values.clone()).await.status, 403);
    assert_eq!(
        node.post("/fn/infer/pipe?shape=1,5", [values.clone(), vec![0; 4]].concat()).await.status,
        400
    );

    // Two concurrent runs, and one that is cancelled.
    deploy(&node, "wait", &workflow(&step("s", "slow", "x"), "s")).await.ok();
    node.deploy_with("overlap", "models=pipe,wait", function("overlap")).await;
    let twice = node.post("/fn/overlap/wait/pipe?shape=1,4", values.clone()).await.ok();
    assert_eq!(&twice.body[..], &[&values[..], &values[..]].concat()[..]);
    let late = node.post("/fn/overlap/deadline/wait?shape=1,4&after_ms=50", values.clone()).await;
    assert!(
        late.status == 504 || late.text().contains("DeadlineExceeded"),
        "{}: {}",
        late.status,
        late.text()
    );
    node.post("/fn/overlap/cancel/wait?shape=1,4", values).await;
    eventually("the end of the runs", async || (pending(&node, "slow").await == 0.0).then_some(())).await;
}
