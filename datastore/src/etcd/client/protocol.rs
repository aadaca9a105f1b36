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
