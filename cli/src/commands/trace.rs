//! `weir trace`.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::commands::why::{DeviceNames, Explained, headline, path_segment, tiers};
use crate::error::{self, Exit, Problem};
use crate::output::{measured, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead as _, BufReader};
use std::time::Duration;
use weir_scheduler::{Estimate, InvocationOutcome, PlacementRecord};
use weir_types::api::{CallKind, CallSpan, CallTimeline, Function, LogLine, RecentCall};
use weir_types::{ErrorCode, Name};

/// Functions whose logs are searched without --function.
const FUNCTIONS_MAX: usize = 200;
/// Cells of a timeline.
const CELLS: u64 = 40;
/// Width of the timeline with its brackets.
const COLUMN: usize = 42;

/// Show one call: the timeline of its phases, its placement, and its log lines
///
/// The request id is in the response's header weir-request-id. Shows the outcome of the call and
/// the times of its phases, workflow steps and sent requests. For calls with models, also compares
/// the scheduler's estimates with the actual times; `weir why` shows the devices that were not
/// chosen.
///
/// Examples:
///   weir trace 4f1c2a9be07d3356
///   weir trace 4f1c2a9be07d3356 --function digits   # search only this function's log
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct TraceArgs {
    /// Id of the request
    #[arg(value_name = "REQUEST_ID")]
    request_id: String,
    /// Search only the log of this function [default: of all functions]
    #[arg(long, value_name = "NAME")]
    function: Option<Name>,
    #[command(flatten)]
    client: ClientArgs,
}

/// One call.
#[derive(Debug, Serialize)]
struct CallTrace {
    request_id: String,
    /// The outcome and the spans; `None` if the node did not record the call.
    call: Option<CallTimeline>,
    /// `None` for a call without models.
    placement: Option<Explained>,
    log: Vec<FunctionLine>,
}

/// A log line with its function.
#[derive(Debug, Serialize)]
struct FunctionLine {
    function: Name,
    #[serde(flatten)]
    line: LogLine,
}

pub(crate) fn run(args: &TraceArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let id = path_segment(&args.request_id);
    let call = find(&client, &format!("/v1/calls/{id}"), "read the timeline")?;
    let placement = find(&client, &format!("/v1/placements/{id}"), "read the placement")?;
    let log = log(&client, args)?;
    if call.is_none() && placement.is_none() && log.is_empty() {
        let text = format!("the node has no record of request {}", args.request_id);
        let hint = "ask the node that received the call, after its end; it keeps the latest calls in memory, and certainly those with the header weir-explain";
        return Err(Problem::new(text).hint(hint).exit(Exit::Refused).into());
    }
    let trace = CallTrace { request_id: args.request_id.clone(), call, placement, log };
    let names = DeviceNames::read(&client);
    context.output.result(&trace, |trace| text(trace, &names))
}

/// The record at `path`; `None` if the node has none.
fn find<T: DeserializeOwned>(client: &Client, path: &str, what: &str) -> Result<Option<T>> {
    match client.get(path, what) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error::code(&error) == Some(ErrorCode::InvocationNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The log lines of the request, oldest first.
fn log(client: &Client, args: &TraceArgs) -> Result<Vec<FunctionLine>> {
    let names = match &args.function {
        Some(name) => vec![name.clone()],
        None => {
            let functions: Vec<Function> = client.get("/v1/functions", "list the functions")?;
            functions.into_iter().map(|function| function.active.name).take(FUNCTIONS_MAX).collect()
        }
    };
    let mut lines = Vec::new();
    for name in names {
        let path = format!("/v1/functions/{name}/logs?lines={}", u32::MAX);
        let stream = client.stream(&path, &format!("read the log of {name}"))?;
        for line in BufReader::new(stream).lines() {
            // Lines that cannot be read are of a later version.
            let Ok(line) = serde_json::from_str::<LogLine>(&line?) else { continue };
            if line.request_id == args.request_id {
                lines.push(FunctionLine { function: name.clone(), line });
            }
        }
    }
    lines.sort_by_key(|line| line.line.at_ms);
    Ok(lines)
}

fn text(trace: &CallTrace, names: &DeviceNames) -> String {
    let mut lines = vec![format!("request {}", trace.request_id)];
    lines.extend(trace.call.as_ref().map(|timeline| outcome(&timeline.call)));
    match &trace.placement {
        Some(explained) => lines.extend(timeline(&explained.placement, names)),
        None => lines.push("The scheduler did not place the call: it used no models.".to_owned()),
    }
    lines.extend(trace.call.iter().flat_map(spans));
    if !trace.log.is_empty() {
        lines.push(String::new());
        lines.push("log".to_owned());
    }
    for FunctionLine { function, line } in &trace.log {
        let LogLine { at_ms, version, stream, text, .. } = line;
        let text = text.replace('\n', "\n    ");
        lines.push(format!("  {} {function} v{version} {stream:<6} {text}", time(*at_ms)));
    }
    lines.join("\n")
}

/// The target of a call, and how the call ended.
fn outcome(call: &RecentCall) -> String {
    let RecentCall { kind, name, version, duration_ns, status, error, .. } = call;
    let kind = match kind {
        CallKind::Function => "function",
        CallKind::Model => "model",
        CallKind::Workflow => "workflow",
    };
    let status = status.map(|status| format!("status {status}"));
    let ended = match (error, status) {
        (Some(error), Some(status)) => format!("failed with {error}, {status},"),
        (Some(error), None) => format!("failed with {error}"),
        (None, Some(status)) => format!("answered with {status}"),
        (None, None) => "ended".to_owned(),
    };
    format!("The {kind} {name}:{version} {ended} after {}.", duration(*duration_ns))
}

/// The recorded spans of a call, indented by their depth, with bars over the time of the call.
fn spans(timeline: &CallTimeline) -> Vec<String> {
    let CallTimeline { call, spans, spans_dropped } = timeline;
    if spans.is_empty() {
        return Vec::new();
    }
    let depths = depths(spans);
    let names: Vec<String> = spans
        .iter()
        .zip(&depths)
        .map(|(CallSpan { name, target, .. }, depth)| {
            let target = target.as_ref().filter(|target| !name.contains(target.as_str()));
            let target = target.map(|target| format!(" {target}")).unwrap_or_default();
            format!("{}{name}{target}", "  ".repeat(*depth))
        })
        .collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut lines = vec![String::new(), format!("{:<width$} {:<COLUMN$} {:>10}", "span", "", "actual")];
    for (span, name) in spans.iter().zip(names) {
        let cells = bar(span.start_ns, span.duration_ns, call.duration_ns);
        let failure = span.error.as_ref().map(|error| format!("  failed: {error}")).unwrap_or_default();
        lines.push(format!("{name:<width$} [{cells}] {:>10}{failure}", duration(span.duration_ns)));
    }
    if *spans_dropped > 0 {
        lines.push(format!("{spans_dropped} further spans were not kept."));
    }
    lines
}

/// The number of spans that enclose each span. Parents come before their parts.
fn depths(spans: &[CallSpan]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(spans.len());
    for span in spans {
        let parent = span.parent.and_then(|parent| depths.get(usize::try_from(parent).ok()?));
        depths.push(parent.map_or(0, |depth| depth + 1));
    }
    depths
}

/// The placement, and the phases after each other: actual times with a bar, and the estimates.
fn timeline(placement: &PlacementRecord, names: &DeviceNames) -> Vec<String> {
    let PlacementRecord { why, outcome, rejection, .. } = placement;
    let Estimate { wait_ns, load_time_ns, move_time_ns, run_time_ns, off_device_ns, .. } = why.estimate;
    let estimated = [wait_ns, load_time_ns, move_time_ns, run_time_ns, off_device_ns].map(Some);
    let actual = outcome.as_ref().map(|outcome| {
        let InvocationOutcome { wait_ns, load_time_ns, move_time_ns, run_time_ns, off_device_ns } = *outcome;
        [Some(wait_ns), Some(load_time_ns), move_time_ns, Some(run_time_ns), Some(off_device_ns)]
    });
    let mut lines = vec![headline(placement, names)];
    let from = tiers(&why.estimate.load_by_tier);
    if !from.is_empty() {
        lines.push(format!("Its models were expected to load {from}."));
    }
    if rejection.is_none() {
        let what = if actual.is_some() { "actual" } else { "estimated: the call has not ended" };
        let shown = actual.unwrap_or(estimated);
        lines.push(String::new());
        lines.push(format!(
            "{:<12} {:<width$} {:>10} {:>10}",
            "phase",
            what,
            "actual",
            "estimate",
            width = COLUMN
        ));
        let total: u64 = shown.iter().flatten().sum();
        let mut before = 0;
        let names = ["wait", "load", "move", "run", "off device"];
        for (place, (name, ns)) in names.iter().zip(shown).enumerate() {
            let measured_ns = actual.and_then(|actual| actual.get(place).copied().flatten());
            let estimated_ns = estimated.get(place).copied().flatten().unwrap_or(0);
            let ns = ns.unwrap_or(0);
            lines.push(format!(
                "{name:<12} [{}] {:>10} {:>10}",
                bar(before, ns, total),
                measured_ns.map_or_else(|| "-".to_owned(), duration),
                duration(estimated_ns)
            ));
            before += ns;
        }
        let sum = |phases: [Option<u64>; 5]| duration(phases.iter().flatten().sum());
        lines.push(format!(
            "{:<12} {:width$} {:>10} {:>10}",
            "total",
            "",
            actual.map_or_else(|| "-".to_owned(), sum),
            sum(estimated),
            width = COLUMN
        ));
    }
    if !why.alternatives.is_empty() {
        let count = why.alternatives.len();
        lines.push(format!("{count} other devices were considered; `weir why` shows their estimates."));
    }
    lines
}

/// A phase of `ns` after `before`, out of `total`. Phases that took time have at least one cell.
fn bar(before: u64, ns: u64, total: u64) -> String {
    let cells = |ns: u64| u64::try_from(u128::from(ns) * u128::from(CELLS) / u128::from(total.max(1)));
    let start = cells(before).unwrap_or(CELLS).min(CELLS);
    let end = cells(before.saturating_add(ns)).unwrap_or(CELLS).min(CELLS);
    let (start, end) = match (end > start, ns > 0) {
        (false, true) => (start.min(CELLS - 1), start.min(CELLS - 1) + 1),
        _ => (start, end),
    };
    (0..CELLS).map(|cell| if (start..end).contains(&cell) { '#' } else { ' ' }).collect()
}

fn duration(ns: u64) -> String {
    measured(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::Why;
    use weir_types::{DeviceId, InvocationId, NodeId, Version};

    fn shown_text(trace: &CallTrace) -> String {
        text(trace, &DeviceNames::default())
    }

    #[test]
    fn bars_follow_each_other_and_show_short_phases() {
        assert_eq!(bar(0, 50, 100), format!("{}{}", "#".repeat(20), " ".repeat(20)));
        assert_eq!(bar(50, 50, 100), format!("{}{}", " ".repeat(20), "#".repeat(20)));
        assert_eq!(bar(100, 1, 101).trim_end(), format!("{}#", " ".repeat(39)));
        assert_eq!(bar(0, 0, 0), " ".repeat(40));
    }

    #[test]
    fn trace_shows_phases_placement_and_log() {
        let outcome = InvocationOutcome { wait_ns: 1_000_000, run_time_ns: 3_000_000, ..Default::default() };
        let placement = PlacementRecord {
            invocation: InvocationId(1),
            node: Some(NodeId(2)),
            device: Some(DeviceId { node: NodeId(2), ordinal: 0 }),
            rejection: None,
            why: Why {
                estimate: Estimate { move_time_ns: 1_000_000, run_time_ns: 2_000_000, ..Estimate::default() },
                alternatives: Vec::new(),
                queued_ns: 0,
            },
            outcome: Some(outcome),
        };
        let line = LogLine {
            at_ms: 0,
            version: Version(3),
            request_id: "a".into(),
            stream: "stdout".into(),
            text: "seven".into(),
        };
        let log = vec![FunctionLine { function: Name::new("digits").unwrap(), line }];
        let placement = Some(Explained { request_id: "a".into(), placement, ratio: None });
        let shown = shown_text(&CallTrace { request_id: "a".into(), call: None, placement, log });
        let wait = format!("wait         [{}{}]    1.000ms", "#".repeat(10), " ".repeat(30));
        let run = format!("run          [{}{}]    3.000ms    2.000ms", " ".repeat(10), "#".repeat(30));
        let unmeasured = format!("move         [{}]          -    1.000ms", " ".repeat(40));
        for part in ["placed on node 2 device 0", &wait, &run, &unmeasured, "digits v3 stdout seven"] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        let bare =
            shown_text(&CallTrace { request_id: "b".into(), call: None, placement: None, log: Vec::new() });
        assert!(bare.contains("it used no models"), "{bare}");
    }

    #[test]
    fn trace_shows_outcome_and_nested_spans() {
        let span = |name: &str, parent, start_ns, duration_ns| CallSpan {
            name: name.into(),
            parent,
            start_ns,
            duration_ns,
            target: None,
            error: None,
        };
        let step = CallSpan { target: Some("m:2".into()), ..span("step scale", None, 0, 2_000_000) };
        let run =
            CallSpan { error: Some("model-error".into()), ..span("run", Some(0), 1_000_000, 1_000_000) };
        let call = RecentCall {
            request_id: "a".into(),
            kind: CallKind::Workflow,
            name: Name::new("pw").unwrap(),
            version: Version(3),
            started_at_ms: 0,
            duration_ns: 2_000_000,
            status: Some(500),
            error: Some("model-error".into()),
        };
        let timeline = CallTimeline { call, spans: vec![step, run], spans_dropped: 4 };
        let shown = shown_text(&CallTrace {
            request_id: "a".into(),
            call: Some(timeline),
            placement: None,
            log: Vec::new(),
        });
        for part in [
            "The workflow pw:3 failed with model-error, status 500, after 2.000ms.".to_owned(),
            format!("step scale m:2 [{}]    2.000ms\n", "#".repeat(40)),
            format!("  run          [{}{}]    1.000ms  failed: model-error", " ".repeat(20), "#".repeat(20)),
            "4 further spans".to_owned(),
        ] {
            assert!(shown.contains(&part), "{part:?} is not in\n{shown}");
        }
    }
}
