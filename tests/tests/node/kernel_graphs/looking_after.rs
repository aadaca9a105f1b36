//! Management of kernel graphs, and errors for invalid graphs.

use super::{example, infer, output, packed, push, tensor, test_kernel, with_kernel_graphs};
use serde_json::{Value, json};
use std::process::Command;
use weir_tests::{TestNode, digits};
use weir_types::ErrorCode;

#[tokio::test]
async fn kernel_graphs_are_disabled_by_default() {
    let node = TestNode::start().await;
    let refusal = push(&node, "chain", &packed("sgemm-chain")).await.refusal();
    assert_eq!((refusal.status, refusal.code), (501, ErrorCode::NotSupported));
    assert!(refusal.text.contains("enabled = true"), "{refusal:?}");
}

#[tokio::test]
async fn kernel_graph_versions_are_separate_from_models_and_can_be_rolled_back() {
    let node = with_kernel_graphs().start().await;
    push(&node, "g", &packed("sgemm-chain")).await.ok();
    push(&node, "g", &packed("jacobi")).await.ok();
    let all: Value = node.get("/v1/kernel-graphs").await.ok().json();
    assert_eq!((&all[0]["name"], &all[0]["versions"]), (&json!("g"), &json!([1, 2])));
    assert!(node.models().await.is_empty());
    assert_eq!(node.get("/v1/models/g").await.refusal().code, ErrorCode::ModelNotFound);
    assert_eq!(node.delete("/v1/models/g").await.refusal().code, ErrorCode::ModelNotFound);
    // A name cannot be a model and a kernel graph.
    let refusal = node
        .try_push_model("g", 9, digits())
        .await
        .expect_err("a model was pushed under the name of a kernel graph");
    assert_eq!(refusal.code, ErrorCode::Conflict);
    node.push_model("digits", 1, digits()).await;
    assert_eq!(push(&node, "digits", &packed("jacobi")).await.refusal().code, ErrorCode::Conflict);

    let back: Value = node.post("/v1/kernel-graphs/g/rollback", "{}").await.ok().json();
    assert_eq!((&back["version"], &back["outputs"][0]["name"]), (&json!(3), &json!("d")));
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    assert_eq!(output(&infer(&node, "g", &inputs).await.ok(), "d"), [24.0]);

    // The graphs survive a restart.
    let node = node.stop().await.start().await;
    assert_eq!(output(&infer(&node, "g", &inputs).await.ok(), "d"), [24.0]);
    node.delete("/v1/kernel-graphs/g").await.ok();
    let refusal = node.get("/v1/kernel-graphs/g").await.refusal();
    assert!(refusal.text.contains("no kernel graph g"), "{refusal:?}");
}

#[tokio::test]
async fn invalid_kernel_graphs_are_rejected_with_a_reason() {
    let node = with_kernel_graphs().start().await;
    let chain = packed("sgemm-chain");
    let with = |pointer: &str, to: Value| {
        let mut upload = chain.clone();
        *upload.pointer_mut(pointer).expect("a place") = to;
        upload
    };
    let mut cyclic = packed("jacobi");
    cyclic["graph"]["launches"][0]["arguments"][1] = json!({"in": "error"});
    let foreign = ".version 7.0 .target sm_75 .address_size 64 .extern .func vprintf; .entry k { ret; }";
    for (upload, why) in [
        (json!("nothing"), "cannot be read"),
        (
            with("/graph/launches/0/kernel", json!("none")),
            "there is no kernel \"none\"; the sources have sgemm",
        ),
        (with("/graph/launches/0/arguments/0", json!({"in": "none"})), "there is no buffer \"none\""),
        (cyclic, "wait for each other in a cycle: sweeps waits for error waits for sweeps"),
        (with("/sources", json!({"k.ptx": foreign})), "k.ptx: vprintf is not in the source"),
        (
            with("/sources", json!({"k.cu": "#include \"/etc/passwd\"\n"})),
            "k.cu: line 1: \"include\" is not allowed",
        ),
    ] {
        let refusal = push(&node, "g", &upload).await.refusal();
        assert_eq!((refusal.status, refusal.code), (422, ErrorCode::InvalidKernelGraph), "{refusal:?}");
        assert!(refusal.text.contains(why), "{why}: {refusal:?}");
    }
    let newer = weir_fake_cuda::TEST_KERNELS.replacen("7.0", "99.0", 1);
    let mut newer = json!({"graph": test_kernel("weir_test_spin", &json!([{"out": "y"}]))["graph"], "sources": {"k.ptx": newer}});
    newer["graph"]["description"] = json!("for a driver that does not exist yet");
    push(&node, "newer", &newer).await.ok();
    let refusal = infer(&node, "newer", &[tensor("x", &[1], &[1.0])]).await.refusal();
    assert!(
        refusal.text.contains("does not take the kernels") && refusal.text.contains(".version"),
        "{refusal:?}"
    );

    // Errors that depend on the inputs are the caller's errors.
    push(&node, "chain", &chain).await.ok();
    let inputs =
        [tensor("a", &[1, 2], &[2.0; 2]), tensor("b", &[3, 1], &[3.0; 3]), tensor("c", &[1, 1], &[4.0])];
    let refusal = infer(&node, "chain", &inputs).await.refusal();
    assert!(refusal.text.contains("dimension \"k\" is 2, and 3 in input \"b\""), "{refusal:?}");
    assert_eq!(refusal.status, 400);
    let inputs = [
        tensor("a", &[5_000, 1], &[1.0; 5_000]),
        tensor("b", &[1, 5_000], &[1.0; 5_000]),
        tensor("c", &[5_000, 1], &[1.0; 5_000]),
    ];
    let refusal = infer(&node, "chain", &inputs).await.refusal();
    assert_eq!((refusal.status, refusal.code), (507, ErrorCode::NoCapacity), "{refusal:?}");
    assert!(refusal.text.contains("kernel_graphs.memory_bytes_max"), "{refusal:?}");
}

#[tokio::test]
async fn kernel_graphs_are_managed_from_the_command_line() {
    let node = with_kernel_graphs().start().await;
    let binary = node.binary().to_owned();
    let url = format!("http://{}", node.address());
    let weir = async |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.arg("kernel-graphs").args(arguments).env("WEIR_URL", &url);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    let folder = example("jacobi");
    let path = folder.to_str().unwrap();
    assert!(weir(&["check", path]).await.unwrap().contains("is sound (launches: 2, sources: 1)"));
    assert!(weir(&[]).await.unwrap().starts_with("no kernel graphs;"));
    let pushed = weir(&["push", "jacobi", path]).await.unwrap();
    assert!(pushed.starts_with("pushed jacobi:1\ninputs       guess: FP32[?, ?]\n"), "{pushed}");
    assert!(weir(&["show", "jacobi"]).await.unwrap().contains("versions     1\n"));
    let other = example("sgemm-chain");
    let push = ["push", "jacobi", other.to_str().unwrap(), "--allow-signature-change"];
    assert!(weir(&push[..3]).await.unwrap_err().contains("input guess: FP32[?, ?] is missing"));
    weir(&push).await.unwrap();
    assert_eq!(weir(&["rollback", "jacobi"]).await.unwrap(), "jacobi:3 restores the earlier version\n");
    assert!(weir(&[]).await.unwrap().contains("jacobi"));
    assert_eq!(weir(&["rm", "jacobi", "--version", "1"]).await.unwrap(), "removed jacobi:1\n");
    let missing = weir(&["check", "/nowhere"]).await.unwrap_err();
    assert!(missing.contains("/nowhere"), "{missing}");
}
