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
    let text = "[node]\nlisten = \"127.0.0.1:1\"\ngateway_threads = 3\n[client]\nurl = \"http://file:1\"\n";
    std::fs::write(folder.path().join("weir.toml"), text).unwrap();
    let environment = [
        ("WEIR_LISTEN", "127.0.0.1:2"),
        ("WEIR_DATA", "/from/environment"),
        ("WEIR_SET", "queue_len_max_is_no_key=1"),
        ("WEIR_URL", "http://environment:2"),
    ];
    let wrong = weir(folder.path(), &["config", "--json"], &environment);
    assert_eq!(wrong.status.code(), Some(2), "an unknown setting in the environment");

    let environment =
        environment.map(|(key, value)| (key, value.replace("queue_len_max_is_no_key", "guest_threads")));
    let environment = environment.each_ref().map(|(key, value)| (*key, value.as_str()));
    let shown = json(&weir(folder.path(), &["config", "--json", "--data", "/from/flag"], &environment));
    let node = &shown["node"];
    assert_eq!(node["listen"], "127.0.0.1:2");
    assert_eq!(node["data"], "/from/flag");
    assert_eq!((&node["gateway_threads"], &node["guest_threads"]), (&3.into(), &1.into()));
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
    let text = "[node]\ngateway_threads = 3\n[function]\nname = \"f\"\ncomponent = \"f.wasm\"\nmodels = [\"m:2\"]\n[function.objects]\nread = [\"a-*\"]\n";
    std::fs::write(&file, text).unwrap();
    let shown = weir(folder.path(), &["config"], &[]);
    std::fs::write(&file, &shown.stdout).unwrap();
    let again = weir(folder.path(), &["config"], &[]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(String::from_utf8(again.stdout), String::from_utf8(shown.stdout));
    let shown = json(&weir(folder.path(), &["config", "--json"], &[]));
    assert_eq!(
        (&shown["node"]["gateway_threads"], &shown["function"]["models"][0]),
        (&3.into(), &"m:2".into())
    );
}

/// Settings whose defaults depend on the machine.
const BY_MACHINE: [&str; 2] = ["gateway_threads", "guest_threads"];

#[test]
fn every_setting_is_documented_with_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
    let shown = json(&weir(folder.path(), &["config", "--json"], &[]));
    let mut tables = vec![&shown["node"]];
    while let Some(table) = tables.pop() {
        for (key, value) in table.as_object().unwrap() {
            let row = match value {
                Value::Object(_) => {
                    tables.push(value);
                    format!("`{key}`")
                }
                // The default of a limit stands beside its cap, so only the cap is checked.
                Value::Number(_) | Value::Bool(_) | Value::String(_) if !BY_MACHINE.contains(&&**key) => {
                    format!("`{value}` |")
                }
                _ => String::new(),
            };
            let is_documented = |line: &str| {
                line.starts_with('|') && line.contains(&format!("`{key}`")) && line.contains(&row)
            };
            assert!(page.lines().any(is_documented), "{key}: {value} is not in docs/configuration.md");
        }
    }
}
