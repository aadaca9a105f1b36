//! Canaries of functions and models: the options, and the wait for the node's decision.

use crate::client::Client;
use crate::error::Problem;
use crate::output::{OutputSettings, age, duration};
use anyhow::Result;
use jiff::SignedDuration;
use serde::de::DeserializeOwned;
use std::time::Duration;
use weir_types::api::{Canary, CanaryReport, EventKind, EventPage, Function, Model, VersionCalls};
use weir_types::{ErrorCode, Name, Version};

/// Interval of questions to the node.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Questions in a row that may stay without an answer, such as while the node restarts.
const UNANSWERED_MAX: u32 = 60;

/// Questions for the event that ended a canary.
const DECISION_ASKED_MAX: u32 = 4;

/// Options of a canary.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CanaryArgs {
    /// Give the new version only this percentage of the calls or runs, from 1 to 99
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(i64::from(Canary::PERCENT_MIN)..=i64::from(Canary::PERCENT_MAX)),
    )]
    canary: Option<u8>,
    /// Have the node promote the canary after this time, such as 5m, and wait for that
    #[arg(long, value_name = "TIME", requires = "canary", value_parser = parse_time)]
    promote_after: Option<Duration>,
}

impl CanaryArgs {
    /// Whether a share is given.
    pub(super) fn is_given(&self) -> bool {
        self.canary.is_some()
    }

    /// The options as a query of the deployment or push.
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

/// A name whose new version may be a canary, as the node describes it.
pub(super) trait HasCanary: DeserializeOwned {
    /// The path segment of its collection.
    const SEGMENT: &'static str;
    /// The code of the error that the name is missing.
    const MISSING: ErrorCode;
    /// The noun for the work that is split with a canary: calls or runs.
    const CALLS: &'static str;

    fn active_version(&self) -> Version;

    /// The command that shows why a canary was rolled back.
    fn explanation(name: &Name) -> String;
}

impl HasCanary for Function {
    const SEGMENT: &'static str = "functions";
    const MISSING: ErrorCode = ErrorCode::FunctionNotFound;
    const CALLS: &'static str = "calls";

    fn active_version(&self) -> Version {
        self.active.version
    }

    fn explanation(name: &Name) -> String {
        format!("weir logs {name} --errors")
    }
}

impl HasCanary for Model {
    const SEGMENT: &'static str = "models";
    const MISSING: ErrorCode = ErrorCode::ModelNotFound;
    const CALLS: &'static str = "runs";

    fn active_version(&self) -> Version {
        self.active.version
    }

    fn explanation(name: &Name) -> String {
        format!("weir events --name {name}")
    }
}

/// Shows the calls of a canary until it was promoted. An error if it was rolled back.
pub(super) fn wait<T: HasCanary>(
    name: &Name,
    canary: Canary,
    client: &Client,
    output: OutputSettings,
) -> Result<T> {
    let segment = T::SEGMENT;
    let spinner = output.spinner("waiting for the canary's calls; Ctrl-C leaves the canary to the node");
    let mut unanswered = 0;
    loop {
        match client.get::<CanaryReport>(&format!("/v1/{segment}/{name}/canary"), "watch the canary") {
            Ok(report) if report.canary.version == canary.version => {
                unanswered = 0;
                spinner.set_message(progress(&report));
            }
            Ok(_) => break,
            Err(error) => match error.downcast_ref::<Problem>().and_then(Problem::code) {
                Some(ErrorCode::CanaryNotFound) => break,
                Some(code) if code == T::MISSING => break,
                _ if unanswered < UNANSWERED_MAX => unanswered += 1,
                _ => return Err(error),
            },
        }
        std::thread::sleep(ASK_EVERY);
    }
    spinner.finish_and_clear();
    let now: T = client.get(&format!("/v1/{segment}/{name}"), &format!("show {name}"))?;
    let why = decision(name, canary, client);
    let active = now.active_version();
    if active == canary.version {
        why.into_iter().for_each(|text| output.note(text));
        return Ok(now);
    }
    let version = canary.version;
    let text = why.unwrap_or_else(|| format!("canary {version} of {name} ended without a promotion"));
    let hint = format!("version {active} gets all {}; {}", T::CALLS, T::explanation(name));
    Err(Problem::new(text).hint(hint).into())
}

/// Describes the share of a canary. `work` is the noun for the work that is split: calls or runs.
pub(super) fn share(canary: Canary, work: &str) -> String {
    let Canary { version, percent, started_at_ms, promote_after_ms } = canary;
    let promotion = promote_after_ms
        .map(|after_ms| format!(", to be promoted after {}", duration(Duration::from_millis(after_ms))));
    let promotion = promotion.unwrap_or_default();
    format!("version {version} gets {percent} % of the {work} (started {}{promotion})", age(started_at_ms))
}

/// The active version of a name in a list, with its canary.
pub(super) fn version_in_list(active: Version, canary: Option<Canary>) -> String {
    canary.map_or_else(
        || active.to_string(),
        |canary| format!("{active} (canary {}: {} %)", canary.version, canary.percent),
    )
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
