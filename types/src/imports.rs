//! Imports of components.

/// Whether a component imports everything that its language could call, as compilers of scripting
/// languages do. Such imports do not show which interfaces the function calls. The function
/// recognises them by an import of UDP sockets, which functions cannot use.
#[must_use]
pub fn imports_whole_runtime(imports: &[String]) -> bool {
    imports.iter().any(|import| import.starts_with("wasi:sockets/udp-create-socket@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_show_that_a_component_has_a_whole_runtime() {
        let imports = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let compiled = ["wasi:cli/stdout@0.2.12", "wasi:http/outgoing-handler@0.2.12"];
        assert!(!imports_whole_runtime(&imports(&compiled)));
        let interpreted = ["wasi:sockets/tcp@0.2.0", "wasi:sockets/udp-create-socket@0.2.0"];
        assert!(imports_whole_runtime(&imports(&interpreted)));
    }
}
