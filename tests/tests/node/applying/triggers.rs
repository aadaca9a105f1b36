//! Triggers in declarations.

use super::Folder;
use serde_json::json;
use weir_tests::TestNode;
use weir_types::api::Trigger;

const DECLARED: &str = "\
functions:
  hello: {component: hello.wasm}
triggers:
  nightly:
    source: {cron: '0 3 * * *', timezone: Europe/Berlin}
    target: {function: hello}
    request: {path: /night, body: 'a body'}
  often:
    source: {every_ms: 3600000}
    target: {function: hello}
    overlap: skip
";

#[tokio::test]
async fn triggers_are_created_changed_and_pruned() {
    let node = TestNode::start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", DECLARED);
    let applied = folder.weir(&node, &["apply"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    assert!(applied.stdout.contains("done: create trigger nightly\n"), "{applied:?}");
    let again = folder.weir(&node, &["apply"]).await;
    assert_eq!(again.stdout, "no differences; 3 unchanged\n", "{again:?}");

    folder.write("weir.yaml", DECLARED.replace("0 3 *", "0 4 *").replace("a body", "another"));
    let diff = folder.weir(&node, &["diff", "--json"]).await;
    let fields = json!([
        {"field": "request.body", "from": "a body", "to": "another"},
        {"field": "source.cron", "from": "0 3 * * *", "to": "0 4 * * *"},
    ]);
    assert_eq!(diff.json()["changes"][0]["fields"], fields, "{diff:?}");
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    let shown: Trigger = node.get("/v1/triggers/nightly").await.ok().json();
    assert_eq!(shown.spec.source.cron.as_deref(), Some("0 4 * * *"));

    let exported = folder.weir(&node, &["export", "--to", "exported"]).await;
    assert_eq!(exported.status, 0, "{exported:?}");
    let equal = folder.weir(&node, &["diff", "-f", "exported"]).await;
    assert_eq!((equal.status, &*equal.stdout), (0, "no differences; 3 unchanged\n"), "{equal:?}");

    let without = DECLARED.split("  nightly:").next().unwrap().to_owned();
    folder.write(
        "weir.yaml",
        without + "  often: {source: {every_ms: 3600000}, target: {function: hello}, overlap: skip}\n",
    );
    let pruned = folder.weir(&node, &["apply", "--prune", "triggers", "--yes"]).await;
    assert!(pruned.stdout.contains("done: delete trigger nightly\n"), "{pruned:?}");
    let listed: Vec<Trigger> = node.get("/v1/triggers").await.ok().json();
    assert_eq!(listed.len(), 1);

    folder.write("weir.yaml", DECLARED.replace("overlap: skip", "overlaps: skip"));
    let refused = folder.weir(&node, &["apply"]).await;
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("did you mean `overlap`?"), "{refused:?}");
}
