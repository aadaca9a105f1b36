//! Messages and service of the Open Inference Protocol over gRPC, as used by Triton and KServe
//! clients. The server is in `weir-host`'s `gateway/grpc.rs`.

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
    // Generated from `proto/` by `cargo xtask bindings`.
    include!("generated.rs");
}
pub use generated::*;
