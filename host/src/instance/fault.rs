//! The reason why an invocation has no response, as reported to the user.

use super::memory::MemoryMeter;
use super::meter::Overrun;
use std::fmt;
use wasmtime::component::ResourceTableError;
use wasmtime::{PoolConcurrencyLimitError, Trap};
use wasmtime_wasi::I32Exit;
use weir_types::api::SloRefusal;
use weir_types::{ErrorCode, Limits};

/// Why an invocation failed: a code for programs, a text for people, and the guest's call stack for
/// its log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Fault {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
    /// For the function's log, not for the caller.
    pub(crate) detail: Option<String>,
    /// The estimate, if the invocation was rejected because of its objective.
    pub(crate) slo: Option<Box<SloRefusal>>,
}

impl Fault {
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), detail: None, slo: None }
    }

    /// The guest's own error: it responded with an error of `wasi:http`.
    pub(crate) fn answered(code: &impl fmt::Display) -> Self {
        Self::new(ErrorCode::GuestError, format!("the function answered with an error: {code}"))
    }

    pub(crate) fn from_overrun(overrun: Overrun, limits: &Limits) -> Self {
        match overrun {
            Overrun::CpuTime => Self::new(
                ErrorCode::CpuTimeLimit,
                format!(
                    "the function used up its {} ms of processor time (limits.cpu_time_ms)",
                    limits.cpu_time_ms
                ),
            ),
            Overrun::Deadline => Self::new(
                ErrorCode::DeadlineExceeded,
                format!("the function did not finish within {} ms (limits.deadline_ms)", limits.deadline_ms),
            ),
        }
    }

    /// Classifies `error`, which ended the guest, with the memory meter's observations.
    pub(crate) fn from_guest(error: &wasmtime::Error, memory: &MemoryMeter, limits: &Limits) -> Self {
        let mut fault = Self::classify(error, memory, limits);
        // Not `{error:?}`, which appends the node's own stack if RUST_BACKTRACE is set.
        let layers: Vec<String> = error.chain().map(ToString::to_string).collect();
        fault.detail = Some(layers.join("\n"));
        fault
    }

    fn classify(error: &wasmtime::Error, memory: &MemoryMeter, limits: &Limits) -> Self {
        if let Some(exit) = error.downcast_ref::<I32Exit>() {
            return Self::new(
                ErrorCode::NoResponse,
                format!("the function exited with status {} without answering", exit.0),
            );
        }
        if error.is::<PoolConcurrencyLimitError>() {
            return Self::new(ErrorCode::Unavailable, "the node has no free instance slot; try again");
        }
        if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
            return Self::new(ErrorCode::HandleLimit, handle_text(limits));
        }
        if let Some(trap) = error.downcast_ref::<Trap>() {
            return Self::from_trap(*trap, memory, limits);
        }
        if let Some(refused) = Self::from_meter(memory, limits) {
            return refused;
        }
        // wasmtime does not export the types of these two errors; the misbehaving-guest tests
        // detect a change of their texts.
        let cause = error.root_cause().to_string();
        if cause.contains("fuel allocated for hostcalls") {
            let max = limits.host_call_bytes;
            return Self::new(
                ErrorCode::HostCallLimit,
                format!("a host call carried more than {max} bytes (limits.host_call_bytes)"),
            );
        }
        if cause.contains("component handles") || cause.contains("handle limit") {
            return Self::new(ErrorCode::HandleLimit, handle_text(limits));
        }
        Self::new(ErrorCode::GuestTrap, format!("the function trapped: {cause}"))
    }

    fn from_trap(trap: Trap, memory: &MemoryMeter, limits: &Limits) -> Self {
        if trap == Trap::StackOverflow {
            return Self::new(
                ErrorCode::StackOverflow,
                "the function's call stack is full: recursion without end?",
            );
        }
        Self::from_meter(memory, limits)
            .unwrap_or_else(|| Self::new(ErrorCode::GuestTrap, format!("the function trapped: {trap}")))
    }

    /// A guest that was refused memory and then failed most likely failed because of that.
    fn from_meter(memory: &MemoryMeter, limits: &Limits) -> Option<Self> {
        match memory.refused()? {
            ErrorCode::TableLimit => Some(Self::new(
                ErrorCode::TableLimit,
                format!(
                    "the function wanted more than {} table elements (limits.table_elements)",
                    limits.table_elements
                ),
            )),
            code => Some(Self::new(
                code,
                format!(
                    "the function wanted more than {} bytes of memory (limits.memory_bytes)",
                    limits.memory_bytes
                ),
            )),
        }
    }
}

fn handle_text(limits: &Limits) -> String {
    format!("the function holds more than {} handles (limits.handles)", limits.handles)
}
