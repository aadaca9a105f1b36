//! Asynchronous invocations.

mod callbacks;
mod commands;
mod durability;
mod failing;
mod idempotency;
mod limits;
mod looking;
mod running;
