//! Invalid documents, as clients see them. `workflow/tests/plan.rs` tests the individual checks.

use super::{deploy, fake_node, infer, rows, step, workflow};
use weir_types::ErrorCode;

#[tokio::test]
async fn invalid_documents_are_rejected_with_step_and_edge() {
    let node = fake_node(&["m"], &[]).await;
    let one = step("a", "m", "x");
    let cases = [
        (String::new(), "missing field `inputs`"),
        ("{".to_owned(), "the workflow cannot be read"),
        ("{\"inputs\": ".repeat(4_000), "the workflow cannot be read"),
        (format!("a = {}", "[".repeat(30_000)), "the workflow cannot be read"),
        (workflow(&one, "a").replace("inputs =", "input ="), "unknown field `input`"),
        (
            workflow(&step("a", "none", "x"), "a"),
            "step a: there is no model, tensor function or workflow none",
        ),
        (workflow(&step("a", "m:7", "x"), "a"), "step a: model m has no version 7; it has 1"),
        (workflow(&step("a", "m", "b"), "a"), "step a, input x: there is no b"),
        (
            workflow(&(step("a", "m", "b") + &step("b", "m", "a")), "a"),
            "the steps wait for each other: a reads b reads a",
        ),
        (
            workflow(&one, "a").replace("[n, 4]", "[n, 5]"),
            "step a, input x: expected FP32[?, 4], but x is FP32[n, 5]",
        ),
        (workflow(&one, "a").replace("FP32", "INT8"), "but x is INT8[n, 4]"),
        (
            workflow(&format!("{one}when = \"max(x) < 1\""), "a"),
            "output y: a.y is absent when max(x) < 1 does not hold",
        ),
        (
            workflow(&one.replace("inputs = { x", "inputs = { z"), "a"),
            "step a: m has no input \"z\"; it has x: FP32[?, 4]",
        ),
        (workflow(&(one.clone() + &step("b", "m", "a")), "a"), "step b is of no use"),
    ];
    for (document, why) in cases {
        let refused = deploy(&node, "w", &document).await.refusal();
        assert_eq!((refused.status, refused.code), (422, ErrorCode::InvalidWorkflow), "{document}");
        assert!(refused.text.contains(why), "{why}: {}", refused.text);
    }
    let large = deploy(&node, "w", &" ".repeat((64 << 10) + 1)).await;
    assert_eq!((large.status, large.code()), (413, ErrorCode::BodyTooLarge));
    let binary = node.put("/v1/workflows/w", vec![0xFF; 10]).await;
    assert_eq!((binary.status, binary.code()), (422, ErrorCode::InvalidWorkflow));
    assert_eq!(deploy(&node, "W", "").await.code(), ErrorCode::InvalidName);
    assert_eq!(node.put("/v1/workflows/w?dryrun=1", "").await.code(), ErrorCode::InvalidRequest);
    assert_eq!(node.get("/v1/workflows").await.ok().text(), "[]");
    // The maximum nesting depth works, deeper nesting is rejected, and existing workflows are
    // unaffected.
    deploy(&node, "deep-1", &workflow(&one, "a")).await.ok();
    for depth in 2..=4 {
        deploy(
            &node,
            &format!("deep-{depth}"),
            &workflow(&step("a", &format!("deep-{}", depth - 1), "x"), "a"),
        )
        .await
        .ok();
    }
    let refused = deploy(&node, "deep-5", &workflow(&step("a", "deep-4", "x"), "a")).await.refusal();
    assert!(refused.text.contains("at most 4 deep"), "{}", refused.text);
    infer(&node, "deep-4", &rows(&[0.0; 4])).await.ok();
}
