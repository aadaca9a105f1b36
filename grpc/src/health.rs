//! Messages of gRPC's health protocol, `grpc.health.v1`.

/// Request of `Check`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthCheckRequest {
    /// Full name of a service; empty for the server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// Response of `Check`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthCheckResponse {
    /// Status of the service.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// Status of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// Not known.
    Unknown = 0,
    /// The service takes calls.
    Serving = 1,
    /// The service takes no calls.
    NotServing = 2,
}
