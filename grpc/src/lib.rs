//! Messages and service of the Open Inference Protocol over gRPC, as used by Triton and KServe
//! clients. The server is in `weir-host`'s `gateway/grpc.rs`.

mod codec;
pub use codec::{BoundedCodec, DESCRIPTION_BYTES_MAX, ITEMS_MAX, decode};

mod health;
pub use health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};

mod reflection;
pub use reflection::{
    ErrorResponse, ExtensionRequest, FileDescriptorResponse, ListServiceResponse, ReflectionAnswer,
    ReflectionQuestion, ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

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

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    #[test]
    fn generated_code_is_of_the_current_proto_file() {
        let digest = hex::encode(Sha256::digest(include_bytes!("../proto/inference.proto")));
        let line = include_str!("generated.rs").lines().next();
        let current = format!("// SHA-256 of inference.proto: {digest}");
        assert_eq!(line, Some(current.as_str()), "run `cargo xtask bindings`");
    }
}
