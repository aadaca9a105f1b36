//! What one function may use. Every limit is on by default; a manifest lowers or raises it up to the node's cap.

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
            /// The most a node allows unless its configuration says otherwise.
            #[must_use]
            pub fn default_caps() -> Self {
                Self { $($field: $cap,)* }
            }

            /// The first limit that is over its cap or zero, as `(name, asked, cap)`.
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
    /// Limits of one function; sizes in bytes and times in milliseconds, as the names say.
    Limits, zero for ["queue_len_max", "log_bytes", "loaded_model_bytes"];
    /// All linear memories of an instance together.
    memory_bytes: u64 = 256 * MIB, cap 1024 * MIB;
    /// All tables of an instance together, in elements.
    table_elements: u32 = 100_000, cap 1_000_000;
    /// Handles a guest may hold at once: tensors, models, streams, headers, ...
    handles: u32 = 10_000, cap 1_000_000;
    /// Bytes that one host call may copy out of the guest.
    host_call_bytes: u64 = 128 * MIB, cap 512 * MIB;
    /// Bytes of tensors that an invocation may hold on the node at once.
    tensor_bytes: u64 = 256 * MIB, cap 2048 * MIB;
    /// Bytes of models that an invocation may load from the guest's own memory, with `load` of `wasi:nn`. The default grants none.
    loaded_model_bytes: u64 = 0, cap 512 * MIB;
    /// The request body.
    request_body_bytes: u64 = 64 * MIB, cap 1024 * MIB;
    /// The response body.
    response_body_bytes: u64 = 64 * MIB, cap 1024 * MIB;
    /// Processor time of the guest's own thread; waiting and model runs do not count.
    cpu_time_ms: u64 = 10_000, cap 300_000;
    /// From the request's arrival to the end of its answer, waiting included.
    deadline_ms: u64 = 30_000, cap 600_000;
    /// Invocations of the function that run at once on a node.
    concurrency_max: u32 = 128, cap 1_000;
    /// Invocations of the function that wait for their turn on a node; one more is answered 429.
    queue_len_max: u32 = 1_024, cap 100_000;
    /// Bytes an invocation may write to its log; the rest is dropped and counted.
    log_bytes: u64 = 64 * KIB, cap 16 * MIB;
}

limits! {
    /// How far an instance of one function may be used again, where its manifest asks for that; without, each call has an instance of its
    /// own. Whichever bound is met first ends the instance.
    Reuse, zero for ["memory_growth_bytes", "handles_max"];
    /// Calls that one instance answers.
    calls_max: u32 = 1_000, cap 1_000_000;
    /// From the instance being made to the last call that it is given.
    age_ms: u64 = 600_000, cap 86_400_000;
    /// How long an instance waits for its next call.
    idle_ms: u64 = 60_000, cap 3_600_000;
    /// Instances of the function that wait at once on a node.
    idle_max: u32 = 8, cap 1_000;
    /// Linear memory that an instance may have gained over its calls; more, and the call that took it is the last.
    memory_growth_bytes: u64 = 64 * MIB, cap 1024 * MIB;
    /// Handles that an instance may hold between two calls: tensors, models, requests without their bodies, headers and standard streams.
    /// One that holds anything else, such as a body, is not used again.
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
