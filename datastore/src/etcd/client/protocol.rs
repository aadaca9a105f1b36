//! Messages and stubs of etcd's gRPC API, generated from `proto/etcd.proto`
//! by `cargo xtask bindings`.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

include!("generated.rs");

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    #[test]
    fn generated_code_is_of_the_current_proto_file() {
        let digest = hex::encode(Sha256::digest(include_bytes!("../../../proto/etcd.proto")));
        let line = include_str!("generated.rs").lines().next();
        let current = format!("// SHA-256 of etcd.proto: {digest}");
        assert_eq!(line, Some(current.as_str()), "run `cargo xtask bindings`");
    }
}
