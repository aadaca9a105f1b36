//! Consistency of the document itself, and schemas of values that a single node does not send.

use super::document::{OpenApiDocument, text};
use jsonschema::draft202012;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use weir_types::api::{
    ClusterStatus, DeviceStatus, ErrorBody, MemberStatus, MemoryMap, ModelBytes, SloRefusal, StepHedge,
    WorkflowStep,
};
use weir_types::{Cost, ElementType, ErrorCode, NodeId};

/// Calls `visit` with `value` and all values in it, with their keys.
fn walk<'a>(key: &'a str, value: &'a Value, visit: &mut dyn FnMut(&'a str, &'a Value)) {
    visit(key, value);
    match value {
        Value::Object(keys) => keys.iter().for_each(|(key, value)| walk(key, value, visit)),
        Value::Array(items) => items.iter().for_each(|item| walk(key, item, visit)),
        _ => {}
    }
}

#[test]
fn references_resolve_and_components_are_used() {
    let document = OpenApiDocument::new();
    let mut used = BTreeSet::new();
    walk("", document.root(), &mut |_, value| {
        if let Some(reference) = value.get("$ref") {
            document.resolve(value);
            used.insert(reference.as_str().unwrap().to_owned());
        }
    });
    let components = document.root()["components"].as_object().unwrap();
    for (kind, all) in components.iter().filter(|(kind, _)| *kind != "securitySchemes") {
        for name in all.as_object().unwrap().keys() {
            let reference = format!("#/components/{kind}/{name}");
            assert!(used.contains(&reference), "the document does not refer to {reference}");
        }
    }
}

#[test]
fn no_value_is_missing() {
    // A comma in plain text of a flow mapping starts a key without a value.
    walk("", OpenApiDocument::new().root(), &mut |key, value| {
        assert!(!value.is_null() || key == "enum", "{key} has no value");
    });
}

#[test]
fn schemas_are_valid_json_schemas() {
    let document = OpenApiDocument::new();
    let schemas = document.root()["components"]["schemas"].as_object().unwrap();
    for name in schemas.keys() {
        let schema = document.schema(name);
        draft202012::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Every required property is described.
        walk(name, &schema, &mut |_, value| {
            let (Some(required), Some(keys)) = (value.get("required"), value.get("properties")) else {
                return;
            };
            let is_part = value.get("allOf").is_some();
            for key in required.as_array().into_iter().flatten().filter_map(Value::as_str) {
                assert!(
                    is_part || keys.get(key).is_some(),
                    "{name} requires {key}, which it does not describe"
                );
            }
        });
    }
}

#[test]
fn operations_are_complete() {
    let document = OpenApiDocument::new();
    let tags: Vec<&str> =
        document.root()["tags"].as_array().unwrap().iter().map(|tag| text(tag, "name")).collect();
    let mut ids = BTreeSet::new();
    for operation in &document.operations {
        let id = &operation.id;
        assert!(ids.insert(id.clone()), "{id} is defined twice");
        let tag = operation.object["tags"][0].as_str().unwrap_or_else(|| panic!("{id} has no tag"));
        assert!(tags.contains(&tag), "{id} has the unknown tag {tag}");
        let summary = text(&operation.object, "summary");
        assert!(!summary.is_empty() && !summary.ends_with('.'), "{id}: {summary}");
        let in_path = operation.parameters.iter().filter(|parameter| parameter["in"] == "path");
        let declared: BTreeSet<&str> = in_path.map(|parameter| text(parameter, "name")).collect();
        let parts = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        assert_eq!(declared, parts.collect(), "parameters of {id}");
        let responses = operation.object["responses"].as_object().unwrap();
        for response in responses.values() {
            assert!(
                document.resolve(response)["description"].is_string(),
                "{id} has a response without text"
            );
        }
        assert!(
            operation.is_open() || responses.contains_key("401") || responses.contains_key("default"),
            "{id} does not document 401"
        );
    }
}

#[test]
fn element_types_are_complete() {
    let types: Vec<&str> = ElementType::ALL.iter().map(|datatype| datatype.as_str()).collect();
    assert_eq!(OpenApiDocument::new().schema("ElementType")["enum"], json!(types));
}

#[test]
fn values_that_a_single_node_does_not_send_match_their_schemas() {
    let document = OpenApiDocument::new();
    let check = |name: &str, value: Value| {
        document.check_json(name, &json!({"$ref": format!("#/components/schemas/{name}")}), &value);
    };
    let device = DeviceStatus {
        name: "cuda:0".to_owned(),
        kind: "gpu".to_owned(),
        backend: "cuda".to_owned(),
        slots: 1,
        runs_waiting: 0,
        capacity_bytes: 1,
        used_bytes: 0,
        resident: vec!["m:1".to_owned()],
        memory: Some(MemoryMap {
            models: vec![ModelBytes { model: "m:1".to_owned(), bytes: 1 }],
            other_models_bytes: 0,
            intermediates_bytes: 0,
            workspace_bytes: 0,
            free_bytes: 0,
        }),
        lost: Some("lost".to_owned()),
    };
    let member = MemberStatus {
        node: NodeId(1),
        address: "127.0.0.1:1".to_owned(),
        version: "0.1.0".to_owned(),
        running: 0,
        queued: 0,
        devices: vec![device],
    };
    for dispatcher in [None, Some(NodeId(1))] {
        let cluster = ClusterStatus {
            node: NodeId(1),
            address: member.address.clone(),
            dispatcher,
            asks_dispatcher: false,
            linked: vec![NodeId(2)],
            nodes: vec![member.clone()],
        };
        check("Cluster", serde_json::to_value(cluster).unwrap());
    }
    let refusal = SloRefusal {
        estimated_ns: 2,
        slo_ns: Some(1),
        estimated_cost: Cost::from_nanos(2),
        cost_slo: Some(Cost::from_nanos(1)),
    };
    let error = ErrorBody {
        error: "late".to_owned(),
        code: ErrorCode::SloUnattainable,
        request_id: "r".to_owned(),
        slo: Some(refusal),
    };
    check("Error", serde_json::to_value(error).unwrap());
    let step = WorkflowStep {
        name: "s".to_owned(),
        action: "run m:1".to_owned(),
        reads: vec!["x".to_owned()],
        when: Some("x > 0".to_owned()),
        hedge: Some(StepHedge::default()),
    };
    check("WorkflowStep", serde_json::to_value(step).unwrap());
}

#[test]
fn unknown_properties_and_missing_ones_are_rejected() {
    let document = OpenApiDocument::new();
    let is_valid = |name: &str, value: &Value| draft202012::is_valid(&document.schema(name), value);
    let row = json!({"device": "cpu", "kind": "cpu", "runs": 1, "device_time_us": 1, "loads": 1,
                     "load_time_us": 1, "byte_seconds": 1});
    let with = |key: &str| {
        let mut row = row.clone();
        row[key] = json!("m");
        row
    };
    // `UsageRow` is an `allOf` of `DeviceUsage`.
    assert!(
        is_valid("DeviceUsage", &row) && is_valid("UsageRow", &row) && is_valid("UsageRow", &with("model"))
    );
    assert!(!is_valid("DeviceUsage", &with("model")) && !is_valid("UsageRow", &with("new_field")));
    let nested = json!({"tenant": "t", "since_ms": 1, "total": [with("new_field")], "rows": []});
    assert!(!is_valid("Usage", &nested));
    let mut less = row.clone();
    less.as_object_mut().unwrap().remove("runs");
    assert!(!is_valid("UsageRow", &less));
}
