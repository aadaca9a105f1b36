//! The tables of routes in `docs/reference/http.md` are generated from the document.

use super::document::{OpenApiDocument, Operation, text};
use std::fmt::Write as _;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/http.md");

/// The table of the operations with a tag. Paths have the names of their parameters in capitals, as
/// in the rest of the page.
fn table(document: &OpenApiDocument, tag: &str) -> String {
    let mut table = "\n| route | effect | query |\n|---|---|---|\n".to_owned();
    let operations = document.operations.iter().filter(|operation| operation.object["tags"][0] == tag);
    let mut last = String::new();
    for operation in operations {
        let path = operation.path.replace(['{', '}'], "\0");
        let path: String = path
            .split('\0')
            .enumerate()
            .map(|(at, part)| if at % 2 == 1 { part.to_uppercase() } else { part.to_owned() })
            .collect();
        // A function takes every method.
        let method = if path.starts_with("/fn/") { "*" } else { operation.method.as_str() };
        let summary = text(&operation.object, "summary");
        let row = format!("| `{method} {path}` | {summary} |{} |\n", query(operation));
        if row != last {
            table.push_str(&row);
        }
        last = row;
    }
    table.push('\n');
    table
}

fn query(operation: &Operation) -> String {
    let mut names = String::new();
    for parameter in operation.parameters.iter().filter(|parameter| parameter["in"] == "query") {
        // The keys of a manifest are described elsewhere.
        let name = if parameter["explode"] == true {
            "*key*".to_owned()
        } else {
            format!("`{}`", text(parameter, "name"))
        };
        let separator = if names.is_empty() { " " } else { ", " };
        let _ = write!(names, "{separator}{name}");
    }
    names
}

#[test]
fn http_reference_lists_every_operation() {
    let document = OpenApiDocument::new();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut rest = page.as_str();
    let mut new = String::new();
    let mut tags = Vec::new();
    while let Some((before, from)) = rest.split_once("<!-- routes: ") {
        let (tag, from) = from.split_once(" -->\n").expect("the marker ends with its line");
        let (_, after) = from.split_once("<!-- end -->").expect("the table has an end");
        write!(new, "{before}<!-- routes: {tag} -->\n{}<!-- end -->", table(&document, tag)).unwrap();
        tags.push(tag);
        rest = after;
    }
    new.push_str(rest);
    for operation in &document.operations {
        let tag = operation.object["tags"][0].as_str().unwrap();
        assert!(tags.contains(&tag), "docs/reference/http.md has no table `<!-- routes: {tag} -->`");
    }
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        return std::fs::write(PAGE, new).unwrap();
    }
    assert_eq!(page, new, "update docs/reference/http.md with WEIR_WRITE_DOCS=1");
}
