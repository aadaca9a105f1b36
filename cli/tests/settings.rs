//! Precedence of settings in `weir config` and `weir doctor`, which is the same as in `weir up`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `weir` in `folder` with only the given environment.
fn weir(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(folder).env_clear().envs(environment.iter().copied());
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn config_shows_flags_over_the_environment_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[node]\nlisten = \"127.0.0.1:1\"\n[node.gateway]\nthreads = 3\nuploads_max = 4\n\
                [client]\nurl = \"http://file:1\"\n";
    std::fs::write(folder.path().join("weir.toml"), text).unwrap();
    let environment = [
        ("WEIR_LISTEN", "127.0.0.1:2"),
        ("WEIR_DATA", "/from/environment"),
        ("WEIR_SET", "queue_len_max_is_no_key=1,scheduler.slo.margin=0.5,gateway.uploads_max=5"),
        ("WEIR_URL", "http://environment:2"),
    ];
    let wrong = weir(folder.path(), &["config", "--json"], &environment);
    assert_eq!(wrong.status.code(), Some(2), "an unknown setting in the environment");

    let environment =
        environment.map(|(key, value)| (key, value.replace("queue_len_max_is_no_key", "sandbox.threads")));
    let environment = environment.each_ref().map(|(key, value)| (*key, value.as_str()));
    let shown = json(&weir(folder.path(), &["config", "--json", "--data", "/from/flag"], &environment));
    let node = &shown["node"];
    assert_eq!(node["listen"], "127.0.0.1:2");
    assert_eq!(node["data"], "/from/flag");
    assert_eq!((&node["gateway"]["threads"], &node["sandbox"]["threads"]), (&3.into(), &1.into()));
    assert_eq!(node["gateway"]["uploads_max"], 5);
    assert_eq!(node["scheduler"]["slo"]["margin"], 0.5);
    assert_eq!(shown["client"]["url"], "http://environment:2");
}

#[test]
fn doctor_checks_the_settings_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let environment = [("WEIR_DATA", "/proc/no/such/folder"), ("WEIR_ONNXRUNTIME", "/no/such/library.so")];
    let output = weir(folder.path(), &["doctor", "--json", "--url", "127.0.0.1:1"], &environment);
    let findings = json(&output);
    let finding = |check: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check} was not looked at")).clone()
    };
    for (check, named) in [("data folder", "/proc/no/such/folder"), ("onnxruntime", "/no/such/library.so")] {
        let finding = finding(check);
        assert_eq!(finding["verdict"], "missing", "{finding}");
        assert!(finding["found"].as_str().unwrap().contains(named), "{finding}");
    }
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn client_rejects_the_nodes_token_file_option() {
    let folder = tempfile::tempdir().unwrap();
    let output = weir(folder.path(), &["status", "--token-file", "tokens"], &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("unexpected argument '--token-file'"), "{said}");
    std::fs::write(folder.path().join("weir.toml"), "[client]\ntoken_file = \"tokens\"\n").unwrap();
    let output = weir(folder.path(), &["status"], &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("token_from"), "{said}");
}

#[test]
fn config_output_is_a_valid_weir_toml() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    let text = "[node.gateway]\nthreads = 3\n[function]\nname = \"f\"\ncomponent = \"f.wasm\"\nmodels = [\"m:2\"]\n[function.objects]\nread = [\"a-*\"]\n";
    std::fs::write(&file, text).unwrap();
    let shown = weir(folder.path(), &["config"], &[]);
    std::fs::write(&file, &shown.stdout).unwrap();
    let again = weir(folder.path(), &["config"], &[]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(String::from_utf8(again.stdout), String::from_utf8(shown.stdout));
    let shown = json(&weir(folder.path(), &["config", "--json"], &[]));
    assert_eq!(
        (&shown["node"]["gateway"]["threads"], &shown["function"]["models"][0]),
        (&3.into(), &"m:2".into())
    );
}

/// Settings whose defaults depend on the machine.
const BY_MACHINE: [&str; 3] =
    ["node.gateway.threads", "node.sandbox.threads", "node.sandbox.images.decodes_max"];

/// The rows of a page's tables, with the tables of `weir.toml` that the text above each row names.
fn documented_rows(page: &str) -> Vec<(Vec<&str>, &str)> {
    let mut tables = Vec::new();
    let mut rows = Vec::new();
    for line in page.lines() {
        if line.starts_with('|') {
            rows.push((tables.clone(), line));
            continue;
        }
        let code = line.split('`').filter_map(|code| code.strip_prefix('[')?.strip_suffix(']'));
        let named: Vec<_> = code.filter(|name| name.split('.').next() == Some("node")).collect();
        if line.starts_with('#') || !named.is_empty() {
            tables = named;
        }
    }
    rows
}

#[test]
fn every_setting_is_documented_with_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let pages = ["configuration.md", "limits.md"].map(|page| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference");
        std::fs::read_to_string(Path::new(folder).join(page)).unwrap()
    });
    let rows: Vec<_> = pages.iter().flat_map(|page| documented_rows(page)).collect();
    let shown = json(&weir(folder.path(), &["config", "--json"], &[]));
    let mut tables = vec![("node".to_owned(), &shown["node"])];
    while let Some((table, values)) = tables.pop() {
        for (key, value) in values.as_object().unwrap() {
            let path = format!("{table}.{key}");
            let default = match value {
                Value::Object(_) => {
                    tables.push((path.clone(), value));
                    String::new()
                }
                // The cell of a limit contains its default and its cap, so only the cap is checked.
                Value::Number(_) | Value::Bool(_) | Value::String(_) if !BY_MACHINE.contains(&&*path) => {
                    format!("`{value}` |")
                }
                _ => String::new(),
            };
            let is_documented = rows.iter().any(|(tables, row)| {
                tables.contains(&&*table) && row.contains(&format!("`{key}`")) && row.contains(&default)
            });
            assert!(is_documented, "{path}: {value} is not in docs/reference/configuration.md or limits.md");
        }
    }
}
