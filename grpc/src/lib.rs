//! The messages and the service of the Open Inference Protocol over gRPC: what clients of Triton and KServe speak. The node's side is
//! `weir-host`'s `gateway/grpc.rs`.

mod codec;
pub use codec::{BoundedCodec, DESCRIPTION_BYTES_MAX, ITEMS_MAX};

mod generated {
    #![allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated code"
    )]
    // From `proto/` by `cargo xtask bindings`.
    include!("generated.rs");
}
pub use generated::*;
