//! `weir apply`, `weir diff` and `weir export`.

mod invalid;
mod stopping;
mod triggers;

use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use weir_tests::{NodeBuilder, TestNode, function, with_custom_section};
use weir_types::Version;
use weir_types::api::{Model, Workflow};

/// A declaration of the model `m`, the function `hello` and the workflow `w`.
const ALL: &str = "\
models:
  m:
    file: m.json
    slots: 2
    labels: [cat, dog]
functions:
  hello:
    component: hello.wasm
    env: {MODE: '${MODE}', PRICE: '$$5'}
    limits: {deadline_ms: 5000}
workflows:
  w:
    document:
      inputs: {x: 'FP32[n, 4]'}
      steps: {a: {run: m, inputs: {x: x}}}
      outputs: {y: a.y}
";

/// Result of a command.
#[derive(Debug)]
struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A folder with a declaration and its files.
struct Folder(TempDir);

impl Folder {
    /// A folder with `m.json`, a fake model, and `hello.wasm`.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("m.json", fake_model(0.0));
        folder.write("hello.wasm", function("hello"));
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, contents: impl AsRef<[u8]>) {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }

    fn command(&self, node: &TestNode, arguments: &[&str]) -> Command {
        let mut command = Command::new(node.binary());
        command
            .args(arguments)
            .current_dir(self.path())
            .env("WEIR_URL", node.url("").as_str().trim_end_matches('/'))
            .env("MODE", "secret-1")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `weir` in this folder, with the variable `MODE`.
    async fn weir(&self, node: &TestNode, arguments: &[&str]) -> Ended {
        ended(self.command(node, arguments)).await
    }
}

async fn ended(mut command: Command) -> Ended {
    let output = command.output().await.expect("the command line cannot be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended {
        status: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// A fake model from FP32[?, 4] to FP32[?, 4].
fn fake_model(run_time_ms: f64) -> String {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 4]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.to_string()
}

fn fake() -> NodeBuilder {
    TestNode::builder().set("models.backend", "fake")
}

/// Versions of the function `hello`.
async fn versions(node: &TestNode, name: &str) -> Vec<u32> {
    node.function(name).await.unwrap().versions.iter().map(|Version(version)| *version).collect()
}

#[tokio::test]
async fn declaration_is_applied_once_and_then_unchanged() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    let applied = folder.weir(&node, &["apply"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    let done: Vec<&str> = applied.stdout.lines().filter(|line| line.starts_with("done")).collect();
    assert_eq!(
        done,
        [
            "done: create model m (version 1)",
            "done: create function hello (version 1)",
            "done: create workflow w (version 1)"
        ]
    );
    assert!(applied.stdout.contains("3 to create; 0 unchanged\n"), "{applied:?}");
    assert!(applied.stdout.ends_with("applied 3 of 3 changes\n"), "{applied:?}");
    let shown = node.function("hello").await.unwrap().active;
    assert_eq!(
        (shown.manifest.limits.deadline_ms, &shown.env_names[..]),
        (5_000, &["MODE".to_owned(), "PRICE".to_owned()][..])
    );
    let model: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(model.active.manifest.slots, Some(2));
    assert_eq!(json!(model.active.manifest.labels), json!({"y": ["cat", "dog"]}));
    let row = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    node.post("/v2/models/w/infer", row.to_string()).await.ok();

    let again = folder.weir(&node, &["apply"]).await;
    assert_eq!((again.status, &*again.stdout), (0, "no differences; 3 unchanged\n"), "{again:?}");
    let diff = folder.weir(&node, &["diff", "--json"]).await;
    assert_eq!((diff.status, diff.json()), (0, json!({"changes": [], "unchanged": 3})));
    assert_eq!(versions(&node, "hello").await, [1]);
    assert_eq!(node.get("/v1/models/m").await.ok().json::<Model>().versions.len(), 1);
    assert_eq!(node.get("/v1/workflows/w").await.ok().json::<Workflow>().versions.len(), 1);
}

#[tokio::test]
async fn changed_settings_need_no_upload() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    // From now on, the node refuses every upload.
    let node = node.stop().await.set("sandbox.component_bytes_max", 10).set("models.model_bytes_max", 10);
    let node = node.start().await;
    folder.write("weir.yaml", ALL.replace("5000", "777"));
    let diff = folder.weir(&node, &["diff"]).await;
    assert_eq!(diff.status, 1, "{diff:?}");
    assert!(
        diff.stdout.contains("update   function   hello   limits.deadline_ms: 5000 -> 777\n"),
        "{diff:?}"
    );
    assert!(diff.stdout.contains("1 to update; 2 unchanged"), "{diff:?}");
    assert_eq!(diff.stderr, "");
    let change = json!({
        "kind": "function", "name": "hello", "action": "update", "upload_bytes": 0,
        "fields": [{"field": "limits.deadline_ms", "from": 5000, "to": 777}],
    });
    let diff = folder.weir(&node, &["diff", "--json"]).await;
    assert_eq!((diff.status, diff.json()), (1, json!({"changes": [change], "unchanged": 2})));
    let dry = folder.weir(&node, &["apply", "--dry-run", "--json"]).await;
    assert_eq!((dry.status, dry.json()), (0, diff.json()));
    assert_eq!(versions(&node, "hello").await, [1], "a dry run changes nothing");

    let applied = folder.weir(&node, &["apply", "--json"]).await;
    let mut change = change;
    change["outcome"] = "done".into();
    change["version"] = 2.into();
    assert_eq!(
        (applied.status, applied.json()),
        (0, json!({"changes": [change], "unchanged": 2})),
        "{applied:?}"
    );
    assert_eq!(node.function("hello").await.unwrap().active.manifest.limits.deadline_ms, 777);

    folder.write("hello.wasm", with_custom_section(&function("hello"), "changed"));
    let refused = folder.weir(&node, &["apply"]).await;
    assert_eq!(refused.status, 4, "a changed component is sent: {refused:?}");
    assert!(refused.stderr.contains("code: body-too-large"), "{refused:?}");
}

#[tokio::test]
async fn changed_variables_are_found_without_showing_their_values() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    let with = |value: &str, arguments: &[&str]| {
        let mut command = folder.command(&node, arguments);
        command.env("MODE", value);
        ended(command)
    };
    let diff = with("secret-2", &["diff"]).await;
    assert_eq!(diff.status, 1, "{diff:?}");
    assert!(diff.stdout.contains("update   function   hello   env: (hidden) -> (hidden)\n"), "{diff:?}");
    let applied = with("secret-2", &["apply", "--json"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    assert_eq!(with("secret-2", &["diff"]).await.status, 0);
    let text = format!("{diff:?}{applied:?}");
    assert!(!text.contains("secret"), "{text}");
    folder.write("weir.yaml", ALL.replace("PRICE: '$$5'", "COST: '5'"));
    let diff = with("secret-2", &["diff"]).await;
    for line in ["env.COST: - -> (hidden)", "env.PRICE: (hidden) -> -"] {
        assert!(diff.stdout.contains(line), "{diff:?}");
    }
}

#[tokio::test]
async fn only_confirmed_pruning_deletes() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    node.deploy("other", function("hello")).await;
    node.push_model("other-model", 1, fake_model(1.0).into_bytes()).await;
    assert_eq!(folder.weir(&node, &["diff"]).await.status, 0, "other functions are no difference");
    let diff = folder.weir(&node, &["diff", "--prune", "functions"]).await;
    assert_eq!(diff.status, 1);
    assert!(diff.stdout.contains("delete   function   other\n"), "{diff:?}");
    assert!(!diff.stdout.contains("other-model"), "{diff:?}");
    let refused = folder.weir(&node, &["apply", "--prune", "functions,models"]).await;
    assert_eq!(refused.status, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("would delete function other, model other-model; nothing was changed"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(node.functions().await.len(), 2);
    let pruned = folder.weir(&node, &["apply", "--prune", "functions", "--yes"]).await;
    assert_eq!(pruned.status, 0, "{pruned:?}");
    assert!(pruned.stdout.contains("done: delete function other\n"), "{pruned:?}");
    assert_eq!((node.functions().await.len(), node.models().await.len()), (1, 2));

    folder.write("functions.yaml", "functions: {hello: {component: hello.wasm}}\n");
    let refused = folder.weir(&node, &["apply", "-f", "functions.yaml", "--prune", "models", "--yes"]).await;
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("would delete all models: the declaration lists none"), "{refused:?}");
    assert_eq!(node.models().await.len(), 2);
}

#[tokio::test]
async fn deletions_are_made_after_changes_and_workflows_first() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    let others = ALL.replace("  m:", "  n:").replace("  w:", "  v:").replace("run: m", "run: n");
    folder.write("weir.yaml", others);
    let applied = folder.weir(&node, &["apply", "--prune", "models,workflows", "--yes"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    let done: Vec<&str> = applied.stdout.lines().filter(|line| line.starts_with("done")).collect();
    assert_eq!(
        done,
        [
            "done: create model n (version 1)",
            "done: create workflow v (version 1)",
            "done: delete workflow w",
            "done: delete model m"
        ]
    );
}

#[tokio::test]
async fn workflows_move_to_new_versions_of_their_models() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    folder.write("m.json", fake_model(1.0));
    let applied = folder.weir(&node, &["apply"]).await;
    assert!(applied.stdout.contains("steps: - -> the newest version of m\n"), "{applied:?}");
    let workflow: Workflow = node.get("/v1/workflows/w").await.ok().json();
    assert_eq!((workflow.active.version, &*workflow.active.steps[0].action), (Version(2), "run m:2"));
    // A push by another client leaves the workflow behind, too.
    node.put("/v1/models/m", fake_model(2.0)).await.ok();
    folder.write("m.json", fake_model(2.0));
    folder.write("weir.yaml", ALL.replace("    slots: 2\n    labels: [cat, dog]\n", ""));
    let diff = folder.weir(&node, &["diff"]).await;
    assert!(
        diff.stdout
            .contains("update   workflow   w      steps: - -> the newest version of what the steps run\n"),
        "{diff:?}"
    );
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    assert_eq!(folder.weir(&node, &["diff"]).await.status, 0);
}

#[tokio::test]
async fn canary_follows_the_declaration() {
    let node = TestNode::start().await;
    let folder = Folder::new();
    let declared = |component: &str, canary: &str| {
        format!("functions:\n  hello:\n    component: {component}.wasm\n{canary}")
    };
    folder.write("new.wasm", with_custom_section(&function("hello"), "new"));
    let apply = async |text: String| {
        folder.write("weir.yaml", text);
        let applied = folder.weir(&node, &["apply"]).await;
        assert_eq!(applied.status, 0, "{applied:?}");
        assert_eq!(folder.weir(&node, &["diff"]).await.status, 0, "{applied:?}");
        applied.stdout
    };
    apply(declared("hello", "")).await;
    let started = apply(declared("new", "    canary: {percent: 10, promote_after_ms: 600000}\n")).await;
    assert!(started.contains("done: canary function hello (version 2)\n"), "{started}");
    let shown = node.function("hello").await.unwrap();
    assert_eq!((shown.active.version, shown.canary.unwrap().promote_after_ms), (Version(1), Some(600_000)));
    let changed = apply(declared("new", "    canary: {percent: 50}\n")).await;
    assert!(changed.contains("canary.percent: 10 -> 50\n"), "{changed}");
    assert_eq!(versions(&node, "hello").await, [1, 2]);
    let promoted = apply(declared("new", "")).await;
    assert!(promoted.contains("done: promote function hello (version 2)\n"), "{promoted}");
    assert_eq!(node.function("hello").await.unwrap().active.version, Version(2));
}

#[tokio::test]
async fn exported_state_has_no_differences() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL.replace("PRICE: '$$5'", "'HOME': '${HOME}'"));
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    let exported = folder.weir(&node, &["export", "--to", "out"]).await;
    assert_eq!((exported.status, &*exported.stdout), (0, "wrote out/weir.yaml\n"), "{exported:?}");
    assert!(exported.stderr.contains("set these variables before an apply: HOME, MODE"), "{exported:?}");
    let text = std::fs::read_to_string(folder.path().join("out/weir.yaml")).unwrap();
    assert!(text.contains("deadline_ms: 5000\n") && !text.contains("memory_bytes"), "{text}");
    let diff = folder.weir(&node, &["diff", "-f", "out/weir.yaml"]).await;
    assert_eq!((diff.status, &*diff.stdout), (0, "no differences; 3 unchanged\n"), "{diff:?}");
    // Settings of a function may change without its file; a push needs the file.
    folder.write("out/weir.yaml", text.replace("deadline_ms: 5000", "deadline_ms: 6000"));
    assert_eq!(folder.weir(&node, &["apply", "-f", "out"]).await.status, 0);
    assert_eq!(node.function("hello").await.unwrap().active.manifest.limits.deadline_ms, 6_000);
    folder.write("out/weir.yaml", text.replace("slots: 2", "slots: 3"));
    let refused = folder.weir(&node, &["diff", "-f", "out"]).await;
    assert_eq!(refused.status, 2, "{refused:?}");
    assert!(refused.stderr.contains("models.m has only a `digest`"), "{refused:?}");
    let refused = folder.weir(&node, &["export", "--to", "out"]).await;
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("out/weir.yaml exists already"), "{refused:?}");
}

/// An apply of the export moved the workflow to the new version.
#[tokio::test]
async fn export_keeps_the_versions_that_workflows_run() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL.replace("PRICE: '$$5'", "'HOME': '${HOME}'"));
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    node.put("/v1/models/m", fake_model(1.0)).await.ok();
    assert_eq!(folder.weir(&node, &["export", "--to", "out"]).await.status, 0);
    let text = std::fs::read_to_string(folder.path().join("out/weir.yaml")).unwrap();
    assert!(text.contains("keep_versions: true"), "{text}");
    let diff = folder.weir(&node, &["diff", "-f", "out"]).await;
    assert_eq!((diff.status, &*diff.stdout), (0, "no differences; 3 unchanged\n"), "{diff:?}");
    folder.write("out/weir.yaml", text.replace("keep_versions: true", "keep_versions: false"));
    let diff = folder.weir(&node, &["diff", "-f", "out"]).await;
    assert!(diff.stdout.contains("update   workflow   w"), "{diff:?}");
}

#[tokio::test]
async fn declarations_may_be_folders_projects_and_standard_input() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("deploy/a.yaml", "functions: {a: {component: ../hello.wasm}}\n");
    folder.write("deploy/b.yml", "functions: {b: {project: ../project, env: {MORE: '1'}}}\n");
    folder.write("deploy/ignored.toml", "not a declaration");
    folder.write(
        "project/weir.toml",
        "[function]\nname = \"ignored\"\ncomponent = \"built.wasm\"\nslo_ms = 60000\nenv = { MODE = \"x\" }\n",
    );
    let missing = folder.weir(&node, &["apply", "-f", "deploy"]).await;
    assert_eq!(missing.status, 2, "{missing:?}");
    assert!(missing.stderr.contains("built.wasm") && missing.stderr.contains("weir build"), "{missing:?}");
    folder.write("project/built.wasm", function("hello"));
    let applied = folder.weir(&node, &["apply", "-f", "deploy"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    let built = node.function("b").await.unwrap().active;
    assert_eq!((built.manifest.slo_ms, built.env_names.len()), (Some(60_000), 2));

    let mut command = folder.command(&node, &["apply", "-f", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(br#"{"functions": {"c": {"component": "hello.wasm"}}}"#).await.unwrap();
    drop(input);
    assert!(child.wait().await.unwrap().success());
    assert_eq!(node.functions().await.len(), 3);
}

#[tokio::test]
async fn aliases_are_declared_applied_and_exported() {
    let node = fake().start().await;
    let folder = Folder::new();
    let with = |aliases: &str| format!("models:\n  m: {{file: m.json, aliases: {aliases}}}\n");
    folder.write("weir.yaml", with("{stable: 1, eu: 1}"));
    let applied = folder.weir(&node, &["apply"]).await;
    assert!(applied.stdout.contains("done: update aliases m"), "{applied:?}");
    let again = folder.weir(&node, &["diff"]).await;
    assert_eq!((again.status, again.stdout.contains("no differences")), (0, true), "{again:?}");
    folder.write("weir.yaml", with("{stable: 1}"));
    let diff = folder.weir(&node, &["diff"]).await;
    assert!(diff.status == 1 && diff.stdout.contains("eu: 1 -> -"), "{diff:?}");
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(
        shown.aliases.iter().map(|(alias, to)| (alias.as_str(), to.version.0)).collect::<Vec<_>>(),
        [("stable", 1)]
    );
    let exported = folder.weir(&node, &["export", "--to", "out"]).await;
    assert_eq!(exported.status, 0, "{exported:?}");
    let diff = folder.weir(&node, &["diff", "-f", "out"]).await;
    assert!(diff.stdout.contains("no differences"), "{diff:?}");
    let text = std::fs::read_to_string(folder.path().join("out/weir.yaml")).unwrap();
    assert!(text.contains("stable: 1"), "{text}");
    folder.write("weir.yaml", with("{eu: 9}"));
    let refused = folder.weir(&node, &["apply"]).await;
    assert!(refused.status > 1 && refused.stderr.contains("has no version 9"), "{refused:?}");
}
