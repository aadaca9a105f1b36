//! The policy for a component's imports.
//!
//! Deployment rejects an interface that Weir does not have, with its name. An interface that Weir
//! has, but that requires a missing grant, is linked and denies calls: it may be imported
//! (toolchains import much that a program never calls), and calling it fails with the interface's
//! own "denied" error.

use crate::hostcalls::NN_VERSION;
use weir_types::FunctionManifest;

/// The decision about one import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportVerdict {
    /// Usable by every function, or granted by the manifest.
    Granted,
    /// Linked, but calls fail.
    Denied,
    /// Not part of Weir.
    Unknown,
}

/// Decides about the import `name`, such as `wasi:http/types@0.2.4`.
pub fn verdict(name: &str, manifest: &FunctionManifest) -> ImportVerdict {
    let Some((interface, version)) = name.split_once('@') else { return ImportVerdict::Unknown };
    let Some((package, _)) = interface.split_once('/') else { return ImportVerdict::Unknown };
    let wasi = version.starts_with("0.2.") || (version.starts_with("0.3.") && !version.contains('-'));
    match (package, wasi) {
        ("weir:inference", _) if version.starts_with("0.1.") => ImportVerdict::Granted,
        ("wasi:io" | "wasi:clocks" | "wasi:random" | "wasi:cli", true) => ImportVerdict::Granted,
        ("wasi:nn", _) if version == NN_VERSION => {
            if manifest.models.is_empty() && manifest.limits.loaded_model_bytes == 0 {
                ImportVerdict::Denied
            } else {
                ImportVerdict::Granted
            }
        }
        ("wasi:filesystem" | "wasi:sockets", true) => ImportVerdict::Denied,
        ("wasi:http", true) if matches!(interface, "wasi:http/outgoing-handler" | "wasi:http/client") => {
            if manifest.outbound_hosts.is_empty() {
                ImportVerdict::Denied
            } else {
                ImportVerdict::Granted
            }
        }
        ("wasi:http", true) => ImportVerdict::Granted,
        _ => ImportVerdict::Unknown,
    }
}

/// Advice for the unknown import `name`.
pub fn hint(name: &str) -> &'static str {
    if name.starts_with("wasi:http/") && name.contains("-rc") {
        "this is a pre-release of WASI 0.3; rebuild with a toolchain that targets wasi:http@0.3.0"
    } else if name.starts_with("wasi:nn/") {
        "Weir has wasi:nn@0.2.0-rc-2024-10-28; rebuild with bindings of that version"
    } else if name.starts_with("wasi:") {
        "Weir has WASI 0.2 and 0.3: io, clocks, random, cli, http, and (denied) filesystem and sockets; and wasi:nn"
    } else if name.starts_with("weir:") {
        "this node has weir:inference@0.1; a newer component needs a newer node"
    } else {
        "Weir has wasi:* and weir:inference; compose other interfaces into the component with `wac plug`"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::Limits;

    #[test]
    fn ungranted_imports_are_denied_and_unknown_imports_are_rejected() {
        let none = FunctionManifest::default();
        let open = FunctionManifest { outbound_hosts: vec!["*".into()], ..FunctionManifest::default() };
        assert_eq!(verdict("wasi:clocks/wall-clock@0.2.0", &none), ImportVerdict::Granted);
        assert_eq!(verdict("wasi:http/types@0.3.0", &none), ImportVerdict::Granted);
        assert_eq!(verdict("wasi:http/outgoing-handler@0.2.12", &none), ImportVerdict::Denied);
        assert_eq!(verdict("wasi:http/outgoing-handler@0.2.12", &open), ImportVerdict::Granted);
        assert_eq!(verdict("wasi:sockets/tcp@0.2.3", &open), ImportVerdict::Denied);
        assert_eq!(verdict("wasi:http/types@0.3.0-rc-2025-09-16", &none), ImportVerdict::Unknown);
        let graph = "wasi:nn/graph@0.2.0-rc-2024-10-28";
        let models =
            FunctionManifest { models: vec!["digits".parse().unwrap()], ..FunctionManifest::default() };
        let limits = Limits { loaded_model_bytes: 1, ..Limits::default() };
        let loads = FunctionManifest { limits, ..FunctionManifest::default() };
        assert_eq!(verdict(graph, &none), ImportVerdict::Denied);
        assert_eq!(verdict(graph, &models), ImportVerdict::Granted);
        assert_eq!(verdict(graph, &loads), ImportVerdict::Granted);
        assert_eq!(verdict("wasi:nn/graph@0.2.0-rc-2024-06-25", &models), ImportVerdict::Unknown);
        assert_eq!(verdict("acme:db/query@1.0.0", &none), ImportVerdict::Unknown);
        assert_eq!(verdict("env", &none), ImportVerdict::Unknown);
    }
}
