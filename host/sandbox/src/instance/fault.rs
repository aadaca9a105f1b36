//! The faults of guests: classifies what ended a guest, for the caller.

use super::memory::{MemoryMeter, RefusedGrowth};
use super::meter::TimeOverrun;
use crate::sources::LocatedTrace;
use std::fmt;
use wasmtime::component::ResourceTableError;
use wasmtime::{PoolConcurrencyLimitError, Trap};
use wasmtime_wasi::I32Exit;
use weir_call::Fault;
use weir_types::{ErrorCode, Limits};

/// The guest's own error: it responded with an error of `wasi:http`.
pub(super) fn answered(code: &impl fmt::Display) -> Fault {
    Fault::new(ErrorCode::GuestError, format!("the function answered with an error: {code}"))
}

/// The fault of a guest that exceeded a limit of time.
pub(super) fn overrun(overrun: TimeOverrun, limits: &Limits) -> Fault {
    match overrun {
        TimeOverrun::CpuTime => Fault::new(
            ErrorCode::CpuTimeLimit,
            format!(
                "the function used up its {} ms of processor time (limits.cpu_time_ms)",
                limits.cpu_time_ms
            ),
        ),
        TimeOverrun::Deadline => Fault::new(
            ErrorCode::DeadlineExceeded,
            format!("the function did not finish within {} ms (limits.deadline_ms)", limits.deadline_ms),
        ),
    }
}

/// Classifies `error`, which ended the guest, with the memory meter's observations. `trace` is the
/// stack trace with its source locations, if they are known.
pub(super) fn ended(
    error: &wasmtime::Error,
    trace: Option<LocatedTrace>,
    memory: &MemoryMeter,
    limits: &Limits,
) -> Fault {
    let mut fault = classify(error, memory, limits);
    // Not `{error:?}`, which appends the node's own stack if RUST_BACKTRACE is set.
    let mut layers: Vec<String> = error.chain().map(ToString::to_string).collect();
    if let Some(trace) = trace
        && let Some(layer) = layers.iter_mut().find(|layer| **layer == trace.plain)
    {
        *layer = trace.located;
    }
    fault.detail = Some(layers.join("\n"));
    fault
}

fn classify(error: &wasmtime::Error, memory: &MemoryMeter, limits: &Limits) -> Fault {
    if let Some(exit) = error.downcast_ref::<I32Exit>() {
        return Fault::new(
            ErrorCode::NoResponse,
            format!("the function exited with status {} without answering", exit.0),
        );
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Fault::new(ErrorCode::Unavailable, "the node has no free instance slot; try again");
    }
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        return Fault::new(ErrorCode::HandleLimit, handle_text(limits));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return from_trap(*trap, memory, limits);
    }
    if let Some(refused) = from_meter(memory, limits) {
        return refused;
    }
    // wasmtime does not export the types of these two errors; the misbehaving-guest tests
    // detect a change of their texts.
    let cause = error.root_cause().to_string();
    if cause.contains("fuel allocated for hostcalls") {
        let max = limits.host_call_bytes;
        return Fault::new(
            ErrorCode::HostCallLimit,
            format!("a host call carried more than {max} bytes (limits.host_call_bytes)"),
        );
    }
    if cause.contains("component handles") || cause.contains("handle limit") {
        return Fault::new(ErrorCode::HandleLimit, handle_text(limits));
    }
    Fault::new(ErrorCode::GuestTrap, format!("the function trapped: {cause}"))
}

fn from_trap(trap: Trap, memory: &MemoryMeter, limits: &Limits) -> Fault {
    if trap == Trap::StackOverflow {
        return Fault::new(
            ErrorCode::StackOverflow,
            "the function's call stack is full: recursion without end?",
        );
    }
    from_meter(memory, limits).unwrap_or_else(|| {
        let text = match trap {
            // How the runtimes of languages end after they have written the exception to the log.
            Trap::UnreachableCodeReached => {
                "the function ended with an uncaught exception or a panic, which its log shows".to_owned()
            }
            trap => format!("the function trapped: {trap}"),
        };
        Fault::new(ErrorCode::GuestTrap, text)
    })
}

/// A guest that was refused memory and then failed most likely failed because of that.
fn from_meter(memory: &MemoryMeter, limits: &Limits) -> Option<Fault> {
    match memory.refused()? {
        RefusedGrowth::Table => Some(Fault::new(
            ErrorCode::TableLimit,
            format!(
                "the function wanted more than {} table elements (limits.table_elements)",
                limits.table_elements
            ),
        )),
        RefusedGrowth::AllGuests(scope) => Some(memory.tenant().refusal(scope)),
        RefusedGrowth::Memory => Some(Fault::new(
            ErrorCode::MemoryLimit,
            format!(
                "the function wanted more than {} bytes of memory (limits.memory_bytes)",
                limits.memory_bytes
            ),
        )),
    }
}

fn handle_text(limits: &Limits) -> String {
    format!("the function holds more than {} handles (limits.handles)", limits.handles)
}
