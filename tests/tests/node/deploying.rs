//! Tests for `PUT /v1/functions/{name}` and related routes.

use reqwest::multipart::{Form, Part};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::process::Command;
use weir_tests::{TestNode, function, with_custom_section};
use weir_types::api::{Deployed, MANIFEST_HEADER};
use weir_types::{ContentHash, ErrorCode, FunctionKind, FunctionManifest, Version};

#[tokio::test]
async fn single_curl_command_deploys_a_function() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fn.wasm");
    std::fs::write(&file, function("hello")).unwrap();
    let url = node.url("/v1/functions/hello");
    let put = Command::new("curl")
        .args(["-sS", "-T"])
        .arg(&file)
        .arg(url.as_str())
        .output()
        .expect("curl is missing");
    let deployed: Deployed = serde_json::from_slice(&put.stdout).expect("curl got no deployment");
    assert!(deployed.created);
    let get = Command::new("curl").args(["-sS", node.url(&deployed.path).as_str()]).output().unwrap();
    assert_eq!(String::from_utf8(get.stdout).unwrap(), "hello\n");
}

#[tokio::test]
async fn deploy_response_describes_the_version() {
    let node = TestNode::start().await;
    let component = function("hello");
    let deployed = node.deploy("hello", component.clone()).await;
    assert!(deployed.created);
    assert_eq!(deployed.path, "/fn/hello/");
    let described = &deployed.function;
    assert_eq!(
        (described.name.as_str(), described.tenant.as_str(), described.version),
        ("hello", "default", Version(1))
    );
    assert_eq!(
        (described.digest, described.component_bytes),
        (ContentHash::from_content(&component), component.len() as u64)
    );
    assert_eq!((described.active, described.kind), (true, FunctionKind::Http02));
    assert_eq!(described.manifest, FunctionManifest::default());
    let shown = node.function("hello").await.unwrap();
    assert_eq!((&shown.active, shown.versions.as_slice()), (described, &[Version(1)][..]));
    assert_eq!(node.functions().await, [shown]);
    assert_eq!(node.function_version("hello", Version(1)).await, *described);
}

#[tokio::test]
async fn identical_deploy_creates_no_version() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let again = node.deploy("hello", function("hello")).await;
    assert_eq!((again.created, again.function.version, again.compile_time_ms), (false, Version(1), 0));
    let other_manifest = node.deploy_with("hello", "limits.deadline_ms=7000", function("hello")).await;
    assert_eq!((other_manifest.created, other_manifest.function.version), (true, Version(2)));
    assert_eq!(other_manifest.compile_time_ms, 0, "the component was compiled before");
}

#[tokio::test]
async fn component_is_compiled_once_for_all_functions() {
    let node = TestNode::start().await;
    let component = with_custom_section(&function("hello"), "compiled once");
    assert!(node.deploy("first", component.clone()).await.compile_time_ms > 0);
    assert_eq!(node.deploy("second", component).await.compile_time_ms, 0);
    assert_eq!(node.get("/fn/second").await.text(), "hello\n");
}

#[tokio::test]
async fn manifest_is_accepted_as_query_header_or_form() {
    let node = TestNode::start().await;
    let manifest =
        json!({ "env": { "GREETING": "1" }, "models": ["digits"], "limits": { "deadline_ms": 700 } });
    let query = "env.GREETING=1&models=digits&limits.deadline_ms=700";
    node.deploy_with("by-query", query, function("hello")).await;

    let header =
        node.request(Method::PUT, "/v1/functions/by-header").header(MANIFEST_HEADER, manifest.to_string());
    assert_eq!(header.body(function("hello")).send().await.unwrap().status(), StatusCode::OK);

    let form =
        Form::new().text("manifest", manifest.to_string()).part("component", Part::stream(function("hello")));
    let form = node.request(Method::PUT, "/v1/functions/by-form").multipart(form);
    assert_eq!(form.send().await.unwrap().status(), StatusCode::OK);

    let mut expected: FunctionManifest = serde_json::from_value(manifest).unwrap();
    let env_names: Vec<String> = std::mem::take(&mut expected.env).into_keys().collect();
    for name in ["by-query", "by-header", "by-form"] {
        let shown = node.function(name).await.unwrap().active;
        assert_eq!(shown.manifest, expected, "{name}");
        assert_eq!(shown.env_names, env_names, "{name}");
        assert_eq!(node.get(&format!("/fn/{name}")).await.text(), "hello\n");
    }
}

#[tokio::test]
async fn dry_run_describes_the_version_without_making_it() {
    let node = TestNode::start().await;
    let dry = node.deploy_with("hello", "dry_run=true", function("hello")).await;
    assert_eq!((dry.function.version, dry.function.active, dry.created), (Version(1), false, false));
    assert_eq!(node.functions().await, []);
    node.deploy_with("hello", "env.MODE=a", function("hello")).await;
    for (query, version, active) in
        [("env.MODE=a", 1, true), ("env.MODE=b", 2, false), ("env.MODE=a&env.B=", 2, false), ("", 2, false)]
    {
        let dry = node.deploy_with("hello", &format!("dry_run=true&{query}"), function("hello")).await;
        let found = (dry.function.version, dry.function.active, dry.created);
        assert_eq!(found, (Version(version), active, false), "{query:?}");
    }
    let refusal = node.try_deploy("hello", "dry_run=true&limits.memory_bytes=0", function("hello")).await;
    assert_eq!(refusal.unwrap_err().code, ErrorCode::InvalidManifest);
    // The canary counts only for a deploy of a canary.
    node.deploy_with("hello", "env.MODE=b&canary=10", function("hello")).await;
    for (query, version) in [("env.MODE=b&canary=20", 2), ("env.MODE=b", 3), ("env.MODE=c&canary=20", 3)] {
        let dry = node.deploy_with("hello", &format!("dry_run=true&{query}"), function("hello")).await;
        assert_eq!((dry.function.version, dry.created), (Version(version), false), "{query:?}");
    }
    let shown = node.function("hello").await.unwrap();
    assert_eq!((&shown.versions[..], shown.canary.unwrap().percent), (&[Version(1), Version(2)][..], 10));
}

#[tokio::test]
async fn digest_deploys_the_component_of_an_earlier_version() {
    let node = TestNode::start().await;
    let first = node.deploy("hello", function("hello")).await.function;
    node.deploy("hello", with_custom_section(&function("hello"), "second")).await;
    let query = format!("digest={}&limits.deadline_ms=777", first.digest);
    let third = node.deploy_with("hello", &query, "").await;
    assert!(third.created);
    assert_eq!((third.function.version, third.function.digest), (Version(3), first.digest));
    assert_eq!(third.function.component_bytes, first.component_bytes);
    assert_eq!(third.function.manifest.limits.deadline_ms, 777);
    assert!(!node.deploy_with("hello", &query, "").await.created, "an equal deploy created a version");
    assert_eq!(node.get("/fn/hello").await.text(), "hello\n");
    // The component is there although the version that brought it is gone.
    assert_eq!(node.delete("/v1/functions/hello/versions/1").await.status, 204);
    let node = node.stop().await.start().await;
    assert_eq!(node.get("/fn/hello").await.text(), "hello\n");

    let digest = first.digest;
    let unknown = ContentHash::from_content(b"unknown");
    for (name, query, body, code) in [
        ("hello", format!("digest={unknown}"), "", ErrorCode::VersionNotFound),
        // The components of other functions, which may be those of other tenants, do not count.
        ("other", format!("digest={digest}"), "", ErrorCode::VersionNotFound),
        ("hello", format!("digest={digest}"), "body", ErrorCode::InvalidRequest),
        ("hello", "digest=abc".to_owned(), "", ErrorCode::InvalidRequest),
    ] {
        let refusal = node.try_deploy(name, &query, body).await.unwrap_err();
        assert_eq!(refusal.code, code, "{query}: {refusal:?}");
    }
    for query in ["dry_run=true".to_owned(), format!("digest={digest}")] {
        let answer = node.put(&format!("/v1/models/m?{query}"), weir_tests::model("good/matmul.onnx")).await;
        assert_eq!(answer.code(), ErrorCode::InvalidRequest, "models have no dry run and no digest");
    }
    assert_eq!(node.models().await.len(), 0);
}

#[tokio::test]
async fn missing_model_causes_a_warning() {
    let node = TestNode::start().await;
    let deployed = node.deploy_with("hello", "models=digits", function("hello")).await;
    assert!(deployed.warnings.iter().any(|warning| warning.contains("digits")), "{:?}", deployed.warnings);
}

#[tokio::test]
async fn unused_and_missing_grants_cause_warnings() {
    let node = TestNode::start().await;
    let warned =
        |deployed: &Deployed, what: &str| deployed.warnings.iter().any(|warning| warning.contains(what));
    let unused =
        node.deploy_with("hello", "models=digits&outbound_hosts=example.com", function("hello")).await;
    assert!(warned(&unused, "grants models"), "{:?}", unused.warnings);
    assert!(warned(&unused, "grants outbound hosts"), "{:?}", unused.warnings);
    let missing = node.deploy("infer", function("infer")).await;
    assert!(warned(&missing, "can use models"), "{:?}", missing.warnings);
    assert_eq!(node.deploy("plain", function("hello")).await.warnings, Vec::<String>::new());
}

#[tokio::test]
async fn deleted_function_is_gone_and_its_name_reusable() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    assert_eq!(node.delete("/v1/functions/hello").await.status, 204);
    assert_eq!(node.get("/fn/hello").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(node.function("hello").await.unwrap_err().code, ErrorCode::FunctionNotFound);
    assert_eq!(node.delete("/v1/functions/hello").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(node.functions().await, []);
    let components = || std::fs::read_dir(node.data().join("components")).unwrap().count();
    weir_tests::eventually("the removal of the component", async || (components() == 0).then_some(())).await;
    assert!(node.deploy("hello", function("hello")).await.created);
    assert_eq!(node.get("/fn/hello").await.text(), "hello\n");
}

#[tokio::test]
async fn denied_imports_are_listed_and_rejected_by_strict() {
    let node = TestNode::start().await;
    // The tokenizer's standard library imports file functions without calling them.
    let deployed = node.deploy("lax", function("embed-text")).await;
    let denied = deployed.denied_imports;
    assert!(denied.iter().any(|import| import.starts_with("wasi:filesystem/")), "{denied:?}");
    let refusal = node.try_deploy("strict", "strict=true", function("embed-text")).await.unwrap_err();
    assert_eq!((refusal.status, refusal.code), (403, ErrorCode::NotGranted));
    assert!(refusal.text.contains("wasi:filesystem/"), "{}", refusal.text);
    assert_eq!(node.function("strict").await.unwrap_err().code, ErrorCode::FunctionNotFound);
    for (component, import) in
        [("classify-digits", "weir:inference/models"), ("objects", "weir:inference/objects")]
    {
        let refusal = node.try_deploy("strict", "strict=true", function(component)).await.unwrap_err();
        assert!(refusal.text.contains(import), "{}", refusal.text);
    }
    assert_eq!(
        node.deploy_with("fine", "strict=true", function("echo-tensor")).await.denied_imports,
        [""; 0]
    );
}

#[tokio::test]
async fn concurrent_deploys_are_all_kept() {
    let node = TestNode::start().await;
    let deploys = (0..12).map(|i| {
        let client = node.client().clone();
        let component = function("hello");
        // Two deploys per name, with different manifests.
        async move {
            client
                .deploy_with(&format!("f{}", i / 2), &format!("outbound_hosts=n{i}.example"), component)
                .await
        }
    });
    let deployed = futures::future::join_all(deploys).await;
    assert!(deployed.iter().all(|deployed| deployed.created));
    for i in 0..6 {
        let shown = node.function(&format!("f{i}")).await.unwrap();
        assert_eq!(shown.versions, [Version(1), Version(2)]);
        assert_eq!(shown.active.version, Version(2));
        let mut seen: Vec<_> =
            deployed.iter().filter(|deployed| deployed.function.name == shown.active.name).collect();
        seen.sort_by_key(|deployed| deployed.function.version);
        assert_eq!(seen[1].function.manifest, shown.active.manifest, "a response describes another deploy");
    }
}

#[tokio::test]
async fn function_names_may_contain_dots() {
    let node = TestNode::start().await;
    node.deploy("my.shout", function("hello")).await;
    assert_eq!(node.get("/fn/my.shout").await.ok().text(), "hello\n");
}
