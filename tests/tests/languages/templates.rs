//! Projects from `weir new` to a call, outside the repository: the binary and the language's
//! registry suffice. Templates of one kind behave the same in every language.

use serde_json::{Value, json};
use std::time::Duration;
use weir_tests::{Language, TestNode, TestProject, eventually, eventually_within};

/// Time limit for a build and a deployment on a busy machine.
const BUILD_TIME_MAX: Duration = Duration::from_secs(300);

async fn http(language: Language) {
    if !language.is_here() {
        return;
    }
    let node = TestNode::builder();
    let project = TestProject::new(&node, language, "http", "my.shout").await;
    project.weir(&["build"]).await;
    let node = node.within(project.folder()).start().await;
    let deployed = async || node.function("my.shout").await.ok();
    eventually_within(BUILD_TIME_MAX, "the project on the node", deployed).await;
    assert_eq!(node.get("/fn/my.shout/").await.ok().text(), "hello from my.shout\n");
    assert_eq!(node.post("/fn/my.shout/shout", "grüezi").await.ok().text(), "GRÜEZI");
    let nowhere = node.get("/fn/my.shout/else").await;
    assert_eq!((nowhere.status, nowhere.text().trim_end()), (404, "there are GET / and POST /shout"));
    let logged = eventually("the log line", async || {
        node.logs("my.shout").await.into_iter().find(|line| line.stream == "stdout")
    });
    assert_eq!(logged.await.text, "shouted 7 bytes");
    // A body that is not UTF-8 is the caller's error.
    assert_eq!(node.post("/fn/my.shout/shout", vec![0xff, 0xfe]).await.status, 400);
}

async fn tensor(language: Language) {
    if !language.is_here() {
        return;
    }
    let node = TestNode::builder();
    let project = TestProject::new(&node, language, "tensor", "scale").await;
    let node = node.start().await;
    let text = project.deploy(&node).await;
    assert!(!text.contains("warning") && !text.contains("not granted"), "an untouched template: {text}");
    let call = async |inputs: Value| node.post("/fn/scale", json!({ "inputs": [inputs] }).to_string()).await;
    let answer: Value =
        call(json!({"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 5]})).await.ok().json();
    assert_eq!(answer["outputs"][0]["name"], "y");
    assert_eq!(answer["outputs"][0]["data"], json!([0.0, 0.25, 1.0]));
    let empty: Value =
        call(json!({"name": "x", "datatype": "FP32", "shape": [0], "data": []})).await.ok().json();
    assert_eq!(empty["outputs"][0]["shape"], json!([0]));
    for (wrong, why) in [
        (json!({"name": "z", "datatype": "FP32", "shape": [1], "data": [1]}), "there is no tensor x"),
        (json!({"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}), "holds int64 and not fp32"),
    ] {
        let refusal = call(wrong.clone()).await.refusal();
        assert_eq!(refusal.status, 400, "{wrong}: {}", refusal.text);
        assert!(refusal.text.contains(why), "{}", refusal.text);
    }
}

macro_rules! tests {
    ($($language:ident: $http:ident, $tensor:ident;)*) => {$(
        #[tokio::test]
        async fn $http() {
            http(Language::$language).await;
        }

        #[tokio::test]
        async fn $tensor() {
            tensor(Language::$language).await;
        }
    )*};
}

tests! {
    Rust: a_new_http_function_in_rust, a_new_tensor_function_in_rust;
    Python: a_new_http_function_in_python, a_new_tensor_function_in_python;
    TypeScript: a_new_http_function_in_typescript, a_new_tensor_function_in_typescript;
    JavaScript: a_new_http_function_in_javascript, a_new_tensor_function_in_javascript;
    C: a_new_http_function_in_c, a_new_tensor_function_in_c;
    Go: a_new_http_function_in_go, a_new_tensor_function_in_go;
}
