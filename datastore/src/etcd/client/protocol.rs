//! Messages and stubs of etcd's gRPC API, generated from `proto/etcd.proto`.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

tonic::include_proto!("etcdserverpb");
