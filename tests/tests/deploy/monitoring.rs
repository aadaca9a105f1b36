//! Boards and alerts use only metrics that exist, and their expressions are well formed.
//!
//! `deploy/monitoring/rules-test.yaml` has unit tests of the alerts, which `promtool` runs.

use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use yaml_serde::Value as Yaml;

/// Environment variable that makes a missing `promtool` an error.
const PROMTOOL_REQUIRED: &str = "WEIR_REQUIRE_PROMTOOL";

/// Series that Prometheus itself adds.
const BY_PROMETHEUS: [&str; 1] = ["up"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring")
}

fn boards() -> Vec<(String, Json)> {
    let files = std::fs::read_dir(folder().join("grafana")).unwrap().map(|file| file.unwrap().path());
    let board = |file: PathBuf| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap())
    };
    files.map(board).collect()
}

fn rules() -> Vec<Yaml> {
    let text = std::fs::read_to_string(folder().join("rules.yaml")).unwrap();
    let file: Yaml = yaml_serde::from_str(&text).unwrap();
    let groups = file["groups"].as_sequence().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_sequence().unwrap().clone()).collect()
}

/// Expressions of the panels and variables of a board.
fn expressions(board: &Json) -> Vec<String> {
    let targets = board["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array());
    let panels = targets.flatten().map(|target| target["expr"].as_str().unwrap().to_owned());
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter_map(|variable| variable["query"]["query"].as_str().map(str::to_owned));
    panels.chain(queries).collect()
}

/// Names of the metrics in an expression, without the suffixes of a histogram's series.
fn metrics(expression: &str, documented: &BTreeSet<&str>) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = expression.split(|letter: char| !is_part(letter));
    let series = words.filter(|word| ["weir_", "nv_", "process_"].iter().any(|kind| word.starts_with(kind)));
    let metric = |series: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
        histogram.filter(|name| documented.contains(name)).unwrap_or(series).to_owned()
    };
    series.map(metric).collect()
}

/// Names in the tables of the reference.
fn documented(page: &str) -> BTreeSet<&str> {
    page.lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn boards_alerts_and_autoscalers_use_documented_metrics() {
    let page = folder().join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let documented = documented(&page);
    let of_boards = boards().into_iter().flat_map(|(name, board)| {
        expressions(&board).into_iter().map(move |expression| (name.clone(), expression))
    });
    let of_rules = rules().into_iter().map(|rule| {
        let name = rule["alert"].as_str().unwrap().to_owned();
        (name, rule["expr"].as_str().unwrap().to_owned())
    });
    let scaler = folder().join("../kubernetes/autoscaling/keda/keda.yaml");
    let scaler: Yaml = yaml_serde::from_str(&std::fs::read_to_string(scaler).unwrap()).unwrap();
    let query = scaler["spec"]["triggers"][0]["metadata"]["query"].as_str().unwrap().to_owned();
    let of_scaler = [("the autoscaler".to_owned(), query)];
    for (user, expression) in of_boards.chain(of_rules).chain(of_scaler) {
        let metrics = metrics(&expression, &documented);
        let is_of_prometheus = BY_PROMETHEUS.iter().any(|name| expression.starts_with(&format!("{name}{{")));
        let is_list = user.starts_with("weir-") && expression.starts_with("label_values");
        assert!(!metrics.is_empty() || is_of_prometheus || is_list, "{user}: no metric in {expression}");
        for metric in metrics {
            assert!(documented.contains(metric.as_str()), "{user} uses {metric}, which does not exist");
        }
    }
}

#[test]
fn every_alert_says_what_is_wrong_and_what_to_do() {
    let mut names = BTreeSet::new();
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap().to_owned();
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {annotation}");
        }
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity:?}");
        assert!(names.insert(name.clone()), "{name} is defined twice");
    }
}

#[test]
fn promtool_accepts_the_configuration_and_the_alerts() {
    for arguments in [
        ["check", "config", "prometheus.yaml"],
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "rules-test.yaml"],
    ] {
        let output = match Command::new("promtool").args(arguments).current_dir(folder()).output() {
            Ok(output) => output,
            Err(error) => {
                let why = format!("promtool does not start: {error}; Debian's package prometheus has it");
                assert!(
                    std::env::var_os(PROMTOOL_REQUIRED).is_none(),
                    "{why}, and {PROMTOOL_REQUIRED} is set"
                );
                return eprintln!("skipped: {why}");
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "promtool {}: {text}{errors}", arguments.join(" "));
    }
}

#[test]
fn boards_can_be_imported_side_by_side() {
    let mut ids = BTreeSet::new();
    for (name, board) in boards() {
        assert_eq!(board["uid"], name.as_str(), "the file has the name of the board");
        assert!(ids.insert(name.clone()));
        let panels = board["panels"].as_array().unwrap();
        let panel_ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(panel_ids.len(), panels.len(), "{name}: equal ids");
        for panel in panels {
            let place = &panel["gridPos"];
            let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
            assert!(right <= 24, "{name}: {} is outside of the grid", panel["title"]);
            let source = &panel["datasource"]["uid"];
            assert!(panel["type"] == "row" || source == "${datasource}", "{name}: {source}");
        }
    }
}
