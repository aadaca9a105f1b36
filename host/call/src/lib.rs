//! The parts that are common to all calls, independent of the target and the node: an id, headers
//! with a meaning to Weir, bodies with limits, an objective, a deadline, and the fault that ends it
//! without a response.

pub mod body;
pub mod headers;
pub mod websocket;

mod fault;
pub use fault::Fault;

mod invocation_id;
pub use invocation_id::next_invocation_id;

mod objective;
pub use objective::{Objective, ObjectiveOutcome};

mod status;
pub use status::status;

mod turnstile;
pub use turnstile::{Turn, Turnstile};

mod until;
pub use until::until;
