//! Quotas of tenants: requests, names and stored bytes.

use weir_tests::{TestClient, TestNode, function, model};
use weir_types::ErrorCode;
use weir_types::api::TenantPage;

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";
const LINES: [&str; 2] = ["acme-token-0123456789 acme", "other-token-0123456789 other"];

/// Sends requests until one is refused, and returns it.
async fn first_refused(client: &TestClient, path: &str, most: u32) -> weir_tests::Answer {
    for _ in 0..most {
        let answer = client.get(path).await;
        if answer.status == 429 {
            return answer;
        }
    }
    panic!("{most} requests were not limited");
}

#[tokio::test]
async fn rate_of_one_tenant_does_not_limit_another() {
    let node = TestNode::builder().tokens(&LINES).set("tenants.acme.requests_per_s", 1);
    let node = node.set("tenants.acme.requests_burst", 20).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    let refused = first_refused(&acme, "/v1/functions", 30).await;
    assert_eq!(refused.code(), ErrorCode::RateLimited);
    let after_s: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after_s), "{after_s}");
    for _ in 0..30 {
        other.get("/v1/functions").await.ok();
    }
    // Health checks and metrics are not counted; metrics count refusals by tenant.
    node.get("/readyz").await.ok();
    assert!(acme.metric("weir_requests_over_quota_total", "quota=\"requests_per_s\"").await >= 1.0);
    assert_eq!(other.metric("weir_requests_over_quota_total", "").await, 0.0);
}

#[tokio::test]
async fn requests_in_progress_are_limited_and_end_with_their_answers() {
    let node = TestNode::builder().tokens(&LINES).set("tenant_default.requests_running_max", 3).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    acme.deploy_with("slow", "limits.deadline_ms=60000", function("misbehave")).await;
    let held: Vec<_> = (0..3)
        .map(|_| {
            let acme = acme.clone();
            // The requests below can use up the quota first.
            tokio::spawn(async move { while acme.get("/fn/slow/sleep").await.status == 429 {} })
        })
        .collect();
    let refused = weir_tests::eventually("the quota to be used up", async || {
        let answer = acme.get("/v1/functions").await;
        (answer.status == 429).then_some(answer)
    })
    .await;
    assert_eq!((refused.code(), refused.header("retry-after")), (ErrorCode::RateLimited, Some("1")));
    other.get("/v1/functions").await.ok();
    held.iter().for_each(tokio::task::JoinHandle::abort);
    weir_tests::eventually("the quota to be free", async || {
        (acme.get("/v1/functions").await.status == 200).then_some(())
    })
    .await;
}

/// Clients without a token that call a public function cannot use up the quotas of the tenant's own
/// clients.
#[tokio::test]
async fn clients_without_a_token_have_half_of_the_quota() {
    let node = TestNode::builder().tokens(&LINES).set("tenants.acme.requests_per_s", 1);
    let node = node.set("tenants.acme.requests_burst", 40).start().await;
    let acme = node.with_token(ACME);
    acme.deploy_with("open", "public=true", function("hello")).await;
    let refused = first_refused(&node, "/fn/acme:open/x", 30).await;
    assert_eq!(refused.code(), ErrorCode::RateLimited);
    acme.get("/fn/open/x").await.ok();
}

#[tokio::test]
async fn names_and_stored_bytes_are_limited() {
    let hello = function("hello");
    let bytes_max = hello.len() * 2 + 10_000;
    let node = TestNode::builder().tokens(&LINES).set("tenants.acme.names_max", 2);
    let node = node.set("tenants.acme.stored_bytes_max", bytes_max).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    acme.deploy("a", hello.clone()).await;
    acme.push_model("m", 1, model("good/add.onnx")).await;
    let refused = acme.try_deploy("b", "", hello.clone()).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (507, ErrorCode::QuotaExceeded));
    assert!(refused.text.contains("names_max"), "{}", refused.text);
    // Another version needs no name, and its bytes count; a removal frees them again.
    acme.deploy_with("a", "env.A=1", hello.clone()).await;
    let refused = acme.try_deploy("a", "env.A=2", hello.clone()).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (507, ErrorCode::QuotaExceeded));
    assert!(refused.text.contains("stored_bytes_max"), "{}", refused.text);
    acme.delete("/v1/functions/a/versions/1").await.ok();
    acme.deploy_with("a", "env.A=2", hello.clone()).await;
    acme.delete("/v1/models/m").await.ok();
    acme.delete("/v1/functions/a/versions/2").await.ok();
    acme.deploy("b", hello.clone()).await;
    for name in ["a", "b", "c"] {
        other.deploy(name, hello.clone()).await;
    }
}

/// The use of a quota: used, limit.
fn quota(page: &TenantPage, tenant: &str, setting: &str) -> (Option<u64>, Option<u64>) {
    let usage = page.tenants.iter().find(|usage| usage.tenant.as_str() == tenant).expect("no such tenant");
    let quota = usage.quotas.iter().find(|quota| quota.setting == setting).expect("no such quota");
    (quota.used, quota.max)
}

#[tokio::test]
async fn use_of_quotas_is_shown_to_its_tenant_and_to_the_operator() {
    let hello = function("hello");
    let lines = [LINES[0], LINES[1], "operator-0123456789 *"];
    let node = TestNode::builder().tokens(&lines).set("tenants.acme.names_max", 7);
    let node = node.set("tenants.acme.requests_running_max", 9).start().await;
    let acme = node.with_token(ACME);
    acme.deploy("a", hello.clone()).await;
    acme.put("/v1/objects/o", "12345678").await.ok();
    acme.deploy_with("slow", "limits.deadline_ms=60000", function("misbehave")).await;
    let held = tokio::spawn({
        let acme = acme.clone();
        async move { acme.get("/fn/slow/sleep").await }
    });
    let page = weir_tests::eventually("a running call", async || {
        let page: TenantPage = acme.get("/v1/tenants").await.ok().json();
        let is_running = quota(&page, "acme", "requests_running_max") == (Some(1), Some(9));
        // Its instance follows a little later.
        let has_memory = quota(&page, "acme", "guest_memory_bytes_max").0 > Some(0);
        (is_running && has_memory).then_some(page)
    })
    .await;
    assert_eq!(page.tenants.len(), 1, "a tenant sees other tenants");
    assert_eq!(quota(&page, "acme", "names_max"), (Some(2), Some(7)));
    assert_eq!(quota(&page, "acme", "objects.tenant_len_max").0, Some(1));
    assert_eq!(quota(&page, "acme", "objects.tenant_bytes_max").0, Some(8));
    assert_eq!(quota(&page, "acme", "instances_max"), (Some(1), Some(500)));
    assert!(quota(&page, "acme", "stored_bytes_max").0 > Some(hello.len() as u64));
    held.abort();

    let all: TenantPage = node.with_token("operator-0123456789").get("/v1/tenants").await.ok().json();
    let names: Vec<_> = all.tenants.iter().map(|usage| usage.tenant.as_str()).collect();
    assert_eq!(names, ["acme", "other"]);
    assert_eq!(quota(&all, "other", "names_max"), (Some(0), Some(10_000)));
    assert_eq!(node.get("/v1/tenants").await.code(), ErrorCode::Unauthorized);
}

#[tokio::test]
async fn page_of_quotas_counts_towards_the_quota_of_requests() {
    let node = TestNode::builder().tokens(&LINES).set("tenants.acme.requests_per_s", 1);
    let node = node.set("tenants.acme.requests_burst", 5).start().await;
    let refused = first_refused(&node.with_token(ACME), "/v1/tenants", 10).await;
    assert_eq!(refused.code(), ErrorCode::RateLimited);
    node.with_token(OTHER).get("/v1/tenants").await.ok();
}

#[tokio::test]
async fn node_without_tokens_counts_for_its_only_tenant() {
    let node = TestNode::start().await;
    let page: TenantPage = node.get("/v1/tenants").await.ok().json();
    assert_eq!(quota(&page, "default", "requests_per_s").1, None, "there is no limit");
    assert_eq!(quota(&page, "default", "instances_max").0, Some(0));
    assert_eq!(quota(&page, "default", "arena_bytes_max").0, Some(0));
}
