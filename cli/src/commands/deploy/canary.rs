//! `weir deploy --canary`: the options, and the wait for the node's decision.

use crate::client::Client;
use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use jiff::SignedDuration;
use std::time::Duration;
use weir_types::api::{Canary, CanaryReport, EventKind, EventPage, Function, VersionCalls};
use weir_types::{ErrorCode, Name};

/// Interval of questions to the node.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Questions in a row that may stay without an answer, such as while the node restarts.
const UNANSWERED_MAX: u32 = 60;

/// Questions for the event that ended a canary.
const DECISION_ASKED_MAX: u32 = 4;

/// Options of a canary.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CanaryArgs {
    /// Give the new version only this percentage of the calls, from 1 to 99
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(i64::from(Canary::PERCENT_MIN)..=i64::from(Canary::PERCENT_MAX)),
    )]
    pub(super) canary: Option<u8>,
    /// Have the node promote the canary after this time, such as 5m, and wait for that
    #[arg(long, value_name = "TIME", requires = "canary", value_parser = parse_time)]
    promote_after: Option<Duration>,
}

impl CanaryArgs {
    /// The options as a query of the deployment.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let percent = self.canary.map(|percent| ("canary", percent.to_string()));
        let after = self.promote_after.map(|after| ("promote_after_ms", after.as_millis().to_string()));
        percent.into_iter().chain(after).collect()
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    let max = Duration::from_millis(Canary::PROMOTE_AFTER_MS_MAX);
    parsed
        .filter(|time| !time.is_zero() && *time <= max)
        .ok_or_else(|| "takes a duration up to 30 days, such as 5m or 1h30m".to_owned())
}

/// Shows the calls of a canary until it was promoted. An error if it was rolled back.
pub(in crate::commands) fn wait(
    name: &Name,
    canary: Canary,
    client: &Client,
    output: OutputSettings,
) -> Result<Function> {
    let spinner = output.spinner("waiting for the canary's calls; Ctrl-C leaves the canary to the node");
    let mut unanswered = 0;
    loop {
        match client.get::<CanaryReport>(&format!("/v1/functions/{name}/canary"), "watch the canary") {
            Ok(report) if report.canary.version == canary.version => {
                unanswered = 0;
                spinner.set_message(progress(&report));
            }
            Ok(_) => break,
            Err(error) => match error.downcast_ref::<Problem>().and_then(Problem::code) {
                Some(ErrorCode::CanaryNotFound | ErrorCode::FunctionNotFound) => break,
                _ if unanswered < UNANSWERED_MAX => unanswered += 1,
                _ => return Err(error),
            },
        }
        std::thread::sleep(ASK_EVERY);
    }
    spinner.finish_and_clear();
    let function: Function = client.get(&format!("/v1/functions/{name}"), &format!("show {name}"))?;
    let why = decision(name, canary, client);
    if function.active.version == canary.version {
        why.into_iter().for_each(|text| output.note(text));
        return Ok(function);
    }
    let version = canary.version;
    let active = function.active.version;
    let text = why.unwrap_or_else(|| format!("canary {version} of {name} ended without a promotion"));
    Err(Problem::new(text).hint(format!("version {active} gets all calls; weir logs {name} --errors")).into())
}

/// The text of the event that ended the canary, if the node still has it. The node records it right
/// after the end.
fn decision(name: &Name, canary: Canary, client: &Client) -> Option<String> {
    for _ in 0..DECISION_ASKED_MAX {
        let found = find_decision(name, canary, client);
        if found.is_some() {
            return found;
        }
        std::thread::sleep(ASK_EVERY);
    }
    None
}

fn find_decision(name: &Name, canary: Canary, client: &Client) -> Option<String> {
    let kinds = [EventKind::CanaryPromoted, EventKind::CanaryRolledBack].map(EventKind::as_str).join(",");
    let path = format!("/v1/events?name={name}&kind={kinds}&since_ms={}", canary.started_at_ms);
    let page: EventPage = client.get(&path, "ask for the decision").ok()?;
    page.events.into_iter().max_by_key(|event| event.at_ms).map(|event| event.text)
}

fn progress(report: &CanaryReport) -> String {
    let CanaryReport { canary, active, canary_calls, active_calls, waits_for, .. } = report;
    let waits_for = waits_for.as_deref().unwrap_or("a request");
    format!(
        "canary {} ({} %): {}; version {active}: {}; waits for {waits_for}",
        canary.version,
        canary.percent,
        calls(canary_calls),
        calls(active_calls)
    )
}

/// Describes the calls of a version.
fn calls(VersionCalls { calls, failed, p95_ms }: &VersionCalls) -> String {
    let p95 = p95_ms.map(|ms| format!(", p95 {ms:.1} ms"));
    format!("{failed} of {calls} failed{}", p95.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_takes_a_duration() {
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        for bad in ["5", "-5m", "0s", "31d", "soon"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
