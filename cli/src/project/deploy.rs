//! Describes deployments.

use crate::client::Client;
use crate::output::size;
use std::collections::BTreeMap;
use weir_types::api::Deployed;
use weir_types::{FunctionKind, NodeId, Version, imports_whole_runtime};

/// Human-readable result of a deployment, with a command that calls the function.
pub(crate) fn describe(deployed: &Deployed, client: &Client) -> String {
    let function = &deployed.function;
    if let Some(canary) = deployed.canary.filter(|_| !deployed.created) {
        return format!(
            "{} version {} gets {} % of the calls now\n",
            function.name, function.version, canary.percent
        );
    }
    if let Some(shadow) = deployed.shadow.filter(|_| !deployed.created) {
        return format!(
            "{} version {} gets copies of {} % of the calls now\n",
            function.name, function.version, shadow.percent
        );
    }
    if !deployed.created && deployed.is_preview {
        return format!("{} version {} exists already: {}\n", function.name, function.version, deployed.path);
    }
    if !deployed.created {
        return format!(
            "{} version {} is deployed already: the same component and manifest\n",
            function.name, function.version
        );
    }
    let what = format!("{} version {}", function.name, function.version);
    let bytes = size(function.component_bytes);
    let mut text = match deployed.compile_time_ms {
        0 => format!("deployed {what} ({bytes}, compiled before)\n"),
        time_ms => format!("deployed {what} ({bytes}, compiled in {time_ms} ms)\n"),
    };
    if let Some(canary) = deployed.canary {
        let name = &function.name;
        text.push_str(&format!(
            "  a canary with {} % of the calls: weir promote {name}, or weir rollback {name}\n",
            canary.percent
        ));
    }
    if let Some(shadow) = deployed.shadow {
        let name = &function.name;
        text.push_str(&format!(
            "  a shadow with copies of {} % of the calls: weir functions show {name} compares, weir rollback {name} ends it\n",
            shadow.percent
        ));
    }
    if deployed.is_preview {
        text.push_str(&format!(
            "  a preview, which gets no other calls: weir promote {} {}\n",
            function.name, function.version
        ));
    }
    deployed.warnings.iter().for_each(|warning| text.push_str(&format!("  warning: {warning}\n")));
    if !deployed.removed_versions.is_empty() {
        text.push_str(&format!("  removed {}\n", old_versions(&deployed.removed_versions)));
    }
    if !deployed.not_visible_on.is_empty() {
        text.push_str(&format!("  {}", not_visible(&deployed.not_visible_on)));
    }
    // Omit imports that no manifest can grant: most standard libraries import them without using
    // them. An interpreter imports everything; its function's log reports denied access.
    let denied = &deployed.denied_imports;
    let grantable = denied.iter().filter(|import| !is_never_granted(import));
    let grantable = grantable.filter(|_| !imports_whole_runtime(denied));
    let grantable: Vec<_> = grantable.map(String::as_str).collect();
    if !grantable.is_empty() {
        text.push_str(&format!("  not granted, so calls to it fail: {}\n", by_package(&grantable)));
        if grantable.iter().any(|import| is_outbound(import)) {
            text.push_str("    requests are granted by host: outbound_hosts = [\"HOST\"]\n");
        }
    }
    let token = if client.has_token() { " -H \"authorization: Bearer $WEIR_TOKEN\"" } else { "" };
    let url = format!("{}{}", client.url(), deployed.path);
    text + &match function.kind {
        FunctionKind::Http02 | FunctionKind::Http03 => format!("call it:\n  curl{token} {url}\n"),
        FunctionKind::Tensor => {
            let tensor = r#"{"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]}"#;
            format!(
                "call it with the tensors that it takes, such as:\n  curl{token} {url} -d '{{\"inputs\": [{tensor}]}}'\n"
            )
        }
    }
}

/// Versions that made room, for a message after `removed`.
pub(crate) fn old_versions(versions: &[Version]) -> String {
    let numbers: Vec<String> = versions.iter().map(ToString::to_string).collect();
    let noun = if versions.len() == 1 { "version" } else { "versions" };
    format!("old {noun} {}", numbers.join(", "))
}

/// The line about nodes of a cluster that may not serve a new version yet; empty if all serve it.
pub(crate) fn not_visible(nodes: &[NodeId]) -> String {
    let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    match numbers.len() {
        0 => String::new(),
        1 => format!(
            "node {} has not confirmed this version; it serves the version once it is back. Deploy or push again to check\n",
            numbers[0]
        ),
        _ => format!(
            "nodes {} have not confirmed this version; they serve the version once they are back. Deploy or push again to check\n",
            numbers.join(", ")
        ),
    }
}

/// Whether no manifest can grant the import: functions have no files, and reach hosts by
/// `wasi:http`.
fn is_never_granted(import: &str) -> bool {
    ["wasi:filesystem/", "wasi:sockets/"].iter().any(|package| import.starts_with(package))
}

/// Whether the import sends HTTP requests.
fn is_outbound(import: &str) -> bool {
    ["wasi:http/outgoing-handler@", "wasi:http/client@"].iter().any(|name| import.starts_with(name))
}

/// Groups imports such as `wasi:http/client@0.3.0` by package: `wasi:http (client,
/// outgoing-handler)`.
fn by_package(imports: &[&str]) -> String {
    let mut packages: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for import in imports {
        let name = import.split('@').next().unwrap_or(import);
        let (package, interface) = name.split_once('/').unwrap_or((name, ""));
        packages.entry(package).or_default().push(interface);
    }
    let packages: Vec<_> = packages
        .iter()
        .map(|(package, interfaces)| format!("{package} ({})", interfaces.join(", ")))
        .collect();
    packages.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_grouped_by_package() {
        let imports = ["wasi:sockets/tcp@0.2.3", "wasi:filesystem/types@0.2.3", "wasi:sockets/udp@0.2.3"]
            .map(str::to_owned);
        assert_eq!(
            by_package(&imports.each_ref().map(String::as_str)),
            "wasi:filesystem (types), wasi:sockets (tcp, udp)"
        );
    }
}
