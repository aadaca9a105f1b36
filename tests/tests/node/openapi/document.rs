//! The OpenAPI document: its operations, and validation of responses against it.

use jsonschema::draft202012;
use serde_json::{Map, Value, json};
use weir_tests::Answer;

/// Keys of a path item that are operations, in the order of [`OpenApiDocument::operations`].
const METHODS: [&str; 8] = ["get", "head", "put", "post", "patch", "delete", "options", "trace"];

/// The document in `docs/reference/openapi.yaml`.
pub(super) struct OpenApiDocument {
    root: Value,
    /// Operations by path and method.
    pub(super) operations: Vec<Operation>,
}

/// One operation of the document.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) path: String,
    /// The operation object.
    pub(super) object: Value,
    /// Parameters of the path and of the operation, without references.
    pub(super) parameters: Vec<Value>,
}

impl OpenApiDocument {
    pub(super) const TEXT: &str = include_str!("../../../../docs/reference/openapi.yaml");

    pub(super) fn new() -> Self {
        let root = yaml_serde::from_str(Self::TEXT).expect("docs/reference/openapi.yaml is not YAML");
        let mut document = Self { root, operations: Vec::new() };
        let paths = document.root["paths"].as_object().expect("the document has paths");
        let mut operations: Vec<Operation> =
            paths.iter().flat_map(|(path, item)| document.operations_of(path, item)).collect();
        let order = |method: &str| METHODS.iter().position(|other| other.eq_ignore_ascii_case(method));
        operations.sort_by_key(|operation| (operation.path.clone(), order(&operation.method)));
        document.operations = operations;
        document
    }

    fn operations_of(&self, path: &str, item: &Value) -> Vec<Operation> {
        let item = item.as_object().unwrap_or_else(|| panic!("{path} has no operations"));
        let unknown = item.keys().find(|key| *key != "parameters" && !METHODS.contains(&key.as_str()));
        assert_eq!(unknown, None, "unknown key of {path}");
        let of_path = list(item.get("parameters"));
        let operations = item.iter().filter(|(key, _)| METHODS.contains(&key.as_str()));
        let operation = |(method, object): (&String, &Value)| Operation {
            id: text(object, "operationId").to_owned(),
            method: method.to_uppercase(),
            path: path.to_owned(),
            object: object.clone(),
            parameters: of_path
                .iter()
                .chain(list(object.get("parameters")))
                .map(|parameter| self.resolve(parameter).clone())
                .collect(),
        };
        operations.map(operation).collect()
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    pub(super) fn operation(&self, id: &str) -> &Operation {
        let operation = self.operations.iter().find(|operation| operation.id == id);
        operation.unwrap_or_else(|| panic!("the document has no operation {id}"))
    }

    /// Follows the reference of `value`, if it is one.
    pub(super) fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        let Some(reference) = value.get("$ref") else { return value };
        let pointer = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
        let target = pointer.and_then(|pointer| self.root.pointer(pointer));
        self.resolve(target.unwrap_or_else(|| panic!("{reference} refers to a missing definition")))
    }

    /// A schema of `components`, as [`Self::closed`] returns it.
    pub(super) fn schema(&self, name: &str) -> Value {
        self.closed(&json!({"$ref": format!("#/components/schemas/{name}")}))
    }

    /// Returns `schema` without references, and with every object closed: an instance with a
    /// property that the document does not describe is invalid.
    pub(super) fn closed(&self, schema: &Value) -> Value {
        self.inlined(schema, true)
    }

    /// `is_closed` is false for a part of an `allOf`, whose whole is closed instead.
    fn inlined(&self, schema: &Value, is_closed: bool) -> Value {
        if schema.get("$ref").is_some() {
            return self.inlined(self.resolve(schema), is_closed);
        }
        let Value::Object(keys) = schema else { return schema.clone() };
        let inlined = |key: &str, value: &Value| match (key, value) {
            ("properties", Value::Object(properties)) => {
                let closed = properties.iter().map(|(name, value)| (name.clone(), self.closed(value)));
                Value::Object(closed.collect())
            }
            ("items" | "additionalProperties", _) => self.closed(value),
            ("allOf", Value::Array(parts)) => parts.iter().map(|part| self.inlined(part, false)).collect(),
            ("oneOf" | "anyOf", Value::Array(parts)) => {
                parts.iter().map(|part| self.inlined(part, is_closed)).collect()
            }
            _ => value.clone(),
        };
        let mut keys: Map<String, Value> =
            keys.iter().map(|(key, value)| (key.clone(), inlined(key, value))).collect();
        let is_object = keys.contains_key("allOf") || keys.get("type") == Some(&json!("object"));
        if is_object && is_closed && !keys.contains_key("additionalProperties") {
            keys.insert("unevaluatedProperties".to_owned(), json!(false));
        }
        Value::Object(keys)
    }

    /// The response object of `operation` for a status: of the status, its class, or `default`.
    fn response<'a>(&'a self, operation: &'a Operation, answer: &Answer) -> &'a Value {
        let responses = &operation.object["responses"];
        let status = answer.status.to_string();
        let class = format!("{}XX", &status[..1]);
        // An error without a code is the function's own.
        let is_guests = answer.status >= 400 && answer.header("weir-error").is_none();
        let keys = if is_guests { vec!["default"] } else { vec![status.as_str(), &class, "default"] };
        let response = keys.into_iter().find_map(|key| responses.get(key));
        let id = &operation.id;
        let response = response.unwrap_or_else(|| panic!("{id} documents no status {status}: {answer:?}"));
        let response = self.resolve(response);
        let component = |name: &str| &self.root["components"]["responses"][name];
        if response != component("Function") {
            return response;
        }
        match answer {
            _ if answer.header("preference-applied").is_some() => component("Accepted"),
            _ if answer.header("weir-error").is_some() => component("ServerError"),
            _ => response,
        }
    }

    /// Checks that the document describes `answer` as a response of `operation`.
    pub(super) fn check(&self, operation: &Operation, answer: &Answer) {
        let response = self.response(operation, answer);
        let what = format!("{} {}", operation.id, answer.status);
        assert!(answer.header("weir-request-id").is_some(), "{what} has no weir-request-id");
        self.check_headers(&what, response, answer);
        let Some(content) = response.get("content").and_then(Value::as_object) else {
            return assert!(answer.body.is_empty(), "{what} documents no body: {answer:?}");
        };
        if operation.method == "HEAD" || content.contains_key("*/*") {
            return;
        }
        let media_type =
            answer.header("content-type").unwrap_or_else(|| panic!("{what} has no content-type"));
        let media_type = media_type.split(';').next().unwrap_or_default();
        let documented = content.get(media_type);
        let documented = documented.unwrap_or_else(|| panic!("{what} does not document {media_type}"));
        let Some(schema) = documented.get("schema") else { return };
        match media_type {
            "application/json" => self.check_json(&what, schema, &answer.json()),
            "application/x-ndjson" => {
                for line in answer.text().lines().filter(|line| !line.is_empty()) {
                    let line = serde_json::from_str(line).unwrap_or_else(|error| panic!("{what}: {error}"));
                    self.check_json(&what, schema, &line);
                }
            }
            _ => self.check_json(&what, schema, &answer.text().into()),
        }
    }

    /// Checks an instance against a schema whose objects are closed.
    pub(super) fn check_json(&self, what: &str, schema: &Value, instance: &Value) {
        let validator =
            draft202012::new(&self.closed(schema)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let errors: Vec<String> = validator
            .iter_errors(instance)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{what} differs from the document:\n{}\n{instance:#}", errors.join("\n"));
    }

    /// Checks the documented headers, and that every header of Weir is documented.
    fn check_headers(&self, what: &str, response: &Value, answer: &Answer) {
        let none = Map::new();
        let documented = response.get("headers").and_then(Value::as_object).unwrap_or(&none);
        for (name, header) in documented {
            let header = self.resolve(header);
            let Some(value) = answer.header(name) else {
                assert_ne!(header["required"], true, "{what} has no {name}");
                continue;
            };
            let (schema, value) = match header.get("content") {
                Some(content) => {
                    (&content["application/json"]["schema"], serde_json::from_str(value).unwrap())
                }
                None => (&header["schema"], typed(self.resolve(&header["schema"]), value)),
            };
            self.check_json(&format!("{what}, header {name}"), schema, &value);
        }
        let is_own = |name: &str| name.starts_with("weir-") && name != "weir-request-id";
        let is_guests = response == &self.root["components"]["responses"]["Function"];
        for name in answer.headers.keys().map(reqwest::header::HeaderName::as_str).filter(|name| is_own(name))
        {
            assert!(is_guests || documented.contains_key(name), "{what} does not document the header {name}");
        }
    }
}

impl Operation {
    /// Whether every client may use the operation.
    pub(super) fn is_open(&self) -> bool {
        self.object.get("security").is_some_and(|security| security == &json!([]))
    }

    /// Documented statuses, without classes and `default`.
    pub(super) fn statuses(&self) -> impl Iterator<Item = u16> {
        let responses = self.object["responses"].as_object().expect("an operation has responses");
        responses.keys().filter_map(|status| status.parse().ok())
    }

    pub(super) fn has_path_parameter(&self, name: &str) -> bool {
        self.path.contains(&format!("{{{name}}}"))
    }

    /// The path with `values` for its parameters, or else their examples, and with the examples of
    /// required parameters of the query.
    pub(super) fn target(&self, values: &[(&str, &str)]) -> String {
        let mut path = self.path.clone();
        let mut query = String::new();
        for parameter in &self.parameters {
            let name = text(parameter, "name");
            let place = text(parameter, "in");
            let given = values.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned());
            let example = || match &parameter["example"] {
                Value::Null => "none".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match place {
                "path" => path = path.replace(&format!("{{{name}}}"), &given.unwrap_or_else(example)),
                "query" if parameter["required"] == true => {
                    let separator = if query.is_empty() { '?' } else { '&' };
                    query += &format!("{separator}{name}={}", given.unwrap_or_else(example));
                }
                _ => {}
            }
        }
        path + &query
    }

    /// Whether a request to `target` reaches this operation's path.
    pub(super) fn matches(&self, target: &str) -> bool {
        let path = target.split('?').next().unwrap_or_default();
        let mut template = self.path.split('/');
        let mut path = path.split('/');
        loop {
            match (template.next(), path.next()) {
                (None, None) => return true,
                (Some("{path}"), Some(_)) => return true,
                (Some(expected), Some(part)) if expected.starts_with('{') || expected == part => {}
                _ => return false,
            }
        }
    }
}

/// A header's value as an instance of `schema`.
fn typed(schema: &Value, value: &str) -> Value {
    if schema["type"] == "integer" {
        value.parse::<u64>().map_or(Value::from(value), Value::from)
    } else {
        value.into()
    }
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{value} has no {key}"))
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
