//! Resource limits of a function. Every limit has a default; a manifest can lower a limit or raise
//! it up to the node's cap.

use serde::{Deserialize, Serialize};

macro_rules! limits {
    (
        $(#[$of:meta])* $name:ident, zero for $zero:expr;
        $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr, cap $cap:expr;)*
    ) => {
        $(#[$of])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $name {
            /// Default caps: the largest limits a node allows unless its configuration changes
            /// them.
            #[must_use]
            pub fn default_caps() -> Self {
                Self { $($field: $cap,)* }
            }

            /// The first limit that is over its cap, or zero where zero is invalid, as `(name,
            /// asked, cap)`.
            #[must_use]
            pub fn first_over(&self, caps: &Self) -> Option<(&'static str, u64, u64)> {
                $(if self.$field > caps.$field || (self.$field == 0 && !$zero.contains(&stringify!($field))) {
                    return Some((stringify!($field), self.$field.into(), caps.$field.into()));
                })*
                None
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

limits! {
    /// Limits of one function. Sizes are in bytes and times in milliseconds, as the field names
    /// say.
    Limits, zero for ["queue_len_max", "log_bytes", "loaded_model_bytes"];
    /// Linear memory of an instance, over all its memories.
    memory_bytes: u64 = 256 * MIB, cap 1024 * MIB;
    /// Table elements of an instance, over all its tables.
    table_elements: u32 = 100_000, cap 1_000_000;
    /// Handles that a guest may hold at once: tensors, models, streams, headers, ...
    handles: u32 = 10_000, cap 1_000_000;
    /// Bytes that one host call may copy out of the guest.
    host_call_bytes: u64 = 128 * MIB, cap 512 * MIB;
    /// Bytes of tensors that an invocation may hold on the node at once.
    tensor_bytes: u64 = 256 * MIB, cap 2048 * MIB;
    /// Bytes of models that an invocation may load from guest memory with `load` of `wasi:nn`. The
    /// default grants none.
    loaded_model_bytes: u64 = 0, cap 512 * MIB;
    /// Size of the request body.
    request_body_bytes: u64 = 64 * MIB, cap 1024 * MIB;
    /// Size of the response body.
    response_body_bytes: u64 = 64 * MIB, cap 1024 * MIB;
    /// Processor time of the guest's thread, and of decoding its images. Waiting and model runs do
    /// not count.
    cpu_time_ms: u64 = 10_000, cap 300_000;
    /// Time from the request's arrival to the end of its response, including waiting.
    deadline_ms: u64 = 30_000, cap 600_000;
    /// Time for which a WebSocket may be open. `deadline_ms` limits the time to answer its handshake.
    websocket_ms: u64 = 3_600_000, cap 86_400_000;
    /// Concurrent invocations of the function on a node.
    concurrency_max: u32 = 128, cap 1_000;
    /// Waiting invocations of the function on a node. Further calls are answered with 429.
    queue_len_max: u32 = 1_024, cap 100_000;
    /// Bytes an invocation may write to its log; the rest is dropped and counted.
    log_bytes: u64 = 64 * KIB, cap 16 * MIB;
}

limits! {
    /// Bounds on reusing an instance of a function whose manifest asks for instance reuse. Without
    /// reuse, each call gets a fresh instance. The first bound reached ends the instance.
    Reuse, zero for ["memory_growth_bytes", "handles_max"];
    /// Calls per instance.
    calls_max: u32 = 1_000, cap 1_000_000;
    /// Time from the creation of an instance to the start of its last call.
    age_ms: u64 = 600_000, cap 86_400_000;
    /// Longest idle time between two calls.
    idle_ms: u64 = 60_000, cap 3_600_000;
    /// Idle instances of the function on a node.
    idle_max: u32 = 8, cap 1_000;
    /// Growth of an instance's linear memory over its calls. A call that exceeds the bound is the
    /// instance's last.
    memory_growth_bytes: u64 = 64 * MIB, cap 1024 * MIB;
    /// Handles that an instance may hold between two calls: tensors, models, requests without their
    /// bodies, headers and standard streams. An instance that holds another kind of handle, such as
    /// a body, is not reused.
    handles_max: u32 = 64, cap 10_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_caps_and_excess_is_named() {
        let caps = Limits::default_caps();
        assert_eq!(Limits::default().first_over(&caps), None);
        let greedy = Limits { memory_bytes: 5 << 30, ..Limits::default() };
        assert_eq!(greedy.first_over(&caps), Some(("memory_bytes", 5 << 30, 1 << 30)));
        let nothing = Limits { deadline_ms: 0, ..Limits::default() };
        assert_eq!(nothing.first_over(&caps).map(|over| over.0), Some("deadline_ms"));
    }
}
