//! Declarations that are refused before anything is changed.

use super::{ALL, Folder, fake};

#[tokio::test]
async fn invalid_declarations_change_nothing() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("text.wasm", "no component");
    folder.write("project/weir.toml", "[function]\nname = \"p\"\ncomponent = \"p.wasm\"\n");
    folder.write("good.yaml", "functions: {good: {component: hello.wasm}}\n");
    folder.write("more.yaml", "functions: {good: {component: hello.wasm}}\n");
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let function = |entry: &str| format!("functions:\n  hello: {entry}\n");
    for (text, expected) in [
        ("functions: [f]\n".to_owned(), "weir.yaml:1:12: functions: invalid type: sequence"),
        ("function: {}\n".to_owned(), "weir.yaml:1:1: unknown field `function`; did you mean `functions`?"),
        (
            ALL.replace("deadline_ms", "deadlin_ms"),
            "functions.hello.limits: unknown field `deadlin_ms`; did you mean `deadline_ms`?",
        ),
        (ALL.replace("slots: 2", "slots: two"), "weir.yaml:4:12: models.m.slots: invalid type"),
        (
            ALL.replace("${MODE}", "${ABSENT_1} ${ABSENT_2}"),
            "variables that are not set here: ABSENT_1, ABSENT_2",
        ),
        (ALL.replace("${MODE}", "${MODE"), "functions.hello: env.MODE: `${` without `}`"),
        (ALL.replace("m.json", "absent.onnx"), "models.m: "),
        (ALL.replace("run: m", "walk: m"), "unknown field `walk`"),
        (ALL.replace("y: a.y", "y: b.y"), "workflows.w: document is not a workflow: "),
        (ALL.replace("  w:", "  hello:"), "functions.hello has the name of a workflow"),
        (function("{component: absent.wasm}"), "functions.hello: cannot read the component absent.wasm"),
        (function("{component: text.wasm}"), "functions.hello: text.wasm is not a WebAssembly component"),
        (function("{}"), "functions.hello: needs one of `component`"),
        (function("{component: a.wasm, project: b}"), "functions.hello: needs one of `component`"),
        (
            function("{project: project, models: [m], public: true}"),
            "models, public cannot be set beside `project`",
        ),
        (function("{project: absent}"), "cannot read absent/weir.toml"),
        (
            function("{component: hello.wasm, canary: {percent: 100}}"),
            "canary.percent = 100 is not from 1 to 99",
        ),
        (function("{digest: abc}"), "functions.hello: a content hash is 64 hexadecimal digits"),
        (
            function(&format!("{{digest: {}}}", "a".repeat(64))),
            "the node has no such function: give `component`",
        ),
        ("workflows: {w: {file: absent.toml}}\n".to_owned(), "workflows.w: cannot read absent.toml"),
        ("models: {m: {}}\n".to_owned(), "models.m: needs either `file`"),
        ("models: {UPPER: {file: m.json}}\n".to_owned(), "models: "),
    ] {
        folder.write("weir.yaml", &text);
        for command in ["diff", "apply"] {
            let refused = folder.weir(&node, &[command]).await;
            assert_eq!(refused.status, 2, "{text}{refused:?}");
            assert!(refused.stderr.contains(expected), "{text}{refused:?}");
        }
    }
    for (files, status, expected) in [
        (
            &["-f", "good.yaml", "-f", "more.yaml"][..],
            2,
            "more.yaml: functions.good is listed in good.yaml, too",
        ),
        (&["-f", "absent.yaml"], 1, "cannot read absent.yaml"),
        (&["-f", "empty"], 2, "the folder empty has no file *.yaml or *.yml"),
    ] {
        let refused = folder.weir(&node, &[&["apply"][..], files].concat()).await;
        assert_eq!(refused.status, status, "{files:?}: {refused:?}");
        assert!(refused.stderr.contains(expected), "{files:?}: {refused:?}");
    }
    // All problems are reported at once.
    folder.write("weir.yaml", "functions: {a: {}, b: {component: absent.wasm}}\n");
    let refused = folder.weir(&node, &["apply", "--json"]).await;
    let error: serde_json::Value = serde_json::from_str(&refused.stderr).unwrap();
    let text = error["error"].as_str().unwrap();
    assert!(
        text.contains("2 problems") && text.contains("functions.a") && text.contains("functions.b"),
        "{text}"
    );
    assert_eq!((node.functions().await.len(), node.models().await.len()), (0, 0));
}

#[tokio::test]
async fn file_without_a_declaration_is_explained() {
    let node = fake().start().await;
    let folder = Folder::new();
    let refused = folder.weir(&node, &["diff"]).await;
    // Status 1 stands for differences.
    assert_eq!(refused.status, 2);
    assert!(
        refused.stderr.contains("cannot read weir.yaml") && refused.stderr.contains("-f FILE"),
        "{refused:?}"
    );
    folder.write("weir.yaml", ALL);
    let mut command = folder.command(&node, &["diff"]);
    command.env("WEIR_URL", "http://127.0.0.1:1");
    let unreachable = super::ended(command).await;
    assert_eq!(unreachable.status, 3, "an unreachable node is no difference: {unreachable:?}");
}
