//! Results of kernel graphs, for clients, functions and workflows.

use super::{infer, output, packed, push, tensor, with_kernel_graphs, workers};
use serde_json::{Value, json};
use weir_tests::{digits, eventually, function};

fn made_up(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at * 7 % 17) as f32 / 17.0 - 0.4).collect()
}

fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let element = |at: usize| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum();
    (0..m * n).map(element).collect()
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance, "element {at}: {found} and not {expected}");
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

#[tokio::test]
async fn matrix_chain_is_called_like_a_model_and_idle_worker_ends() {
    let node = with_kernel_graphs().set("kernel_graphs.keep_alive_ms", 1_000).start().await;
    let pushed: Value = push(&node, "chain", &packed("sgemm-chain")).await.ok().json();
    assert_eq!((&pushed["version"], &pushed["inputs"][0]["shape"]), (&json!(1), &json!([null, null])));
    assert_eq!(workers(&node), [0_u32; 0], "a worker runs before the first call");
    for [m, n, k, p] in [[3, 5, 4, 2], [20, 33, 17, 40], [3, 5, 4, 2]] {
        let a = made_up(m * k);
        let b = made_up(k * n);
        let c = made_up(n * p);
        let inputs = [tensor("a", &[m, k], &a), tensor("b", &[k, n], &b), tensor("c", &[n, p], &c)];
        let answer = infer(&node, "chain", &inputs).await.ok();
        assert_eq!(answer.header("weir-device"), Some("cuda:0"));
        let expected = product(&product(&wide(&a), &wide(&b), [m, n, k]), &wide(&c), [m, p, n]);
        close(&output(&answer, "d"), &expected, 1e-4);
    }
    assert_eq!(workers(&node).len(), 1);
    let metadata: Value = node.get("/v2/models/chain").await.ok().json();
    assert_eq!(metadata["platform"], "weir_kernel_graph");
    assert!(
        node.metric("nv_inference_compute_infer_duration_us", "chain").await > 0.0,
        "its device time is counted"
    );
    eventually("the worker ends", async || workers(&node).is_empty().then_some(())).await;
    // The worker starts again on demand.
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    assert_eq!(output(&infer(&node, "chain", &inputs).await.ok(), "d"), [24.0]);
}

/// Two chained calls through an object equal one call with all sweeps, without the data at the
/// client.
#[tokio::test]
async fn chained_calls_exchange_data_through_an_object() {
    let node = with_kernel_graphs().start().await;
    push(&node, "jacobi", &packed("jacobi")).await.ok();
    let n = 9;
    let source = vec![1.0_f32; 81];
    let first = [tensor("guess", &[n, n], &[0.0; 81]), tensor("source", &[n, n], &source)];
    let once = output(&infer(&node, "jacobi", &first).await.ok(), "x");
    let next =
        [tensor("guess", &[n, n], &once.iter().map(|x| *x as f32).collect::<Vec<_>>()), first[1].clone()];
    let twice = output(&infer(&node, "jacobi", &next).await.ok(), "x");

    let zeroes = vec![0_u8; 4 * 81];
    node.put("/v1/objects/x?datatype=FP32&shape=9,9", zeroes).await.ok();
    let kept = json!({"shared_memory_region": "x"});
    let guess = json!({"name": "guess", "datatype": "FP32", "shape": [n, n], "parameters": kept});
    let outputs = json!([{"name": "x", "parameters": kept}]);
    let request = json!({"inputs": [guess, first[1]], "outputs": outputs}).to_string();
    for _ in 0..2 {
        let answer: Value = node.post("/v2/models/jacobi/infer", request.clone()).await.ok().json();
        assert_eq!(answer["outputs"][0].get("data"), None);
    }
    let left = node.get("/v1/objects/x/data").await.ok();
    let left: Vec<f32> = left.body.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    close(&wide(&left), &twice, 1e-6);
}

#[tokio::test]
async fn jacobi_iteration_converges() {
    let node = with_kernel_graphs().start().await;
    push(&node, "jacobi", &packed("jacobi")).await.ok();
    let n = 9;
    let source = vec![1.0_f32; 81];
    let inputs = [tensor("guess", &[n, n], &[0.0; 81]), tensor("source", &[n, n], &source)];
    let answer = infer(&node, "jacobi", &inputs).await.ok();
    let mut x = vec![0.0_f64; n * n];
    for _ in 0..100 {
        let at = |row: i64, column: i64| {
            let is_inside = (0..n as i64).contains(&row) && (0..n as i64).contains(&column);
            if is_inside { x[row as usize * n + column as usize] } else { 0.0 }
        };
        let point = |at_: usize| {
            let row = (at_ / n) as i64;
            let column = (at_ % n) as i64;
            0.25 * (at(row - 1, column)
                + at(row + 1, column)
                + at(row, column - 1)
                + at(row, column + 1)
                + 1.0)
        };
        x = (0..n * n).map(point).collect();
    }
    close(&output(&answer, "x"), &x, 1e-4);
    assert!(output(&answer, "error").iter().all(|error| (0.0..0.1).contains(error)));
}

#[tokio::test]
async fn image_is_resized_and_normalised() {
    let node = with_kernel_graphs().start().await;
    push(&node, "prepare", &packed("resize-normalise")).await.ok();
    // An image of one colour keeps its colour at any size.
    let height = 3;
    let width = 5;
    let data: Vec<u8> = [10, 100, 250].repeat(height * width);
    let image = json!({"name": "image", "datatype": "UINT8", "shape": [height, width, 3], "data": data});
    let values = output(&infer(&node, "prepare", &[image]).await.ok(), "data");
    let expected = [(10.0, 0.485, 0.229), (100.0, 0.456, 0.224), (250.0, 0.406, 0.225)];
    for (channel, (value, mean, deviation)) in values.chunks(224 * 224).zip(expected) {
        close(channel, &vec![(value / 255.0 - mean) / deviation; 224 * 224], 1e-4);
    }
    assert_eq!(values.len(), 3 * 224 * 224);
}

#[tokio::test]
async fn functions_and_workflows_run_kernel_graphs_beside_models() {
    let node = with_kernel_graphs().start().await;
    // The output shape matches the digits model's input.
    let halves = json!({
        "graph": {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1, 8, 8]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1, 8, 8], "zero": true}],
            "launches": [{"name": "copy", "kernel": "weir_test_scale_add", "grid": [1], "block": [64],
                          "arguments": [{"out": "y"}, {"in": "x"}, {"f32": 1}, {"u32": 64}]}],
        },
        "sources": {"test.ptx": weir_fake_cuda::TEST_KERNELS},
    });
    push(&node, "prepare", &halves).await.ok();
    node.push_model("digits", 1, digits()).await;
    let workflow = "[inputs]\nx = 'FP32[1, 1, 8, 8]'\n[steps.prepare]\nrun = 'prepare'\ninputs = { x = 'x' }\n\
                    [steps.classify]\nrun = 'digits'\ninputs = { image = 'prepare' }\n[outputs]\nclass = 'classify'\n";
    node.put("/v1/workflows/both", workflow).await.ok();
    let image: Vec<f32> = (0..64).map(|at| (at * 7 % 17) as f32).collect();
    let both = infer(&node, "both", &[tensor("x", &[1, 1, 8, 8], &image)]).await.ok();
    let alone = infer(&node, "digits", &[tensor("image", &[1, 1, 8, 8], &image)]).await.ok();
    let first = |answer| -> Vec<f64> {
        let answer: Value = weir_tests::Answer::json(answer);
        answer["outputs"][0]["data"].as_array().expect("values").iter().filter_map(Value::as_f64).collect()
    };
    close(&first(&both), &first(&alone), 2e-3);

    node.deploy_with("infer", "models=prepare", function("infer")).await;
    let body: Vec<u8> = image.iter().flat_map(|value| value.to_le_bytes()).collect();
    let answer = node.post("/fn/infer/prepare?shape=1,1,8,8", body.clone()).await.ok();
    assert_eq!(answer.body, body, "a function gets what the kernel has copied");
}
