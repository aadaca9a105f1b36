//! Shadows of functions and models: the option, and the comparison with the active version.

use crate::client::Client;
use crate::output::age;
use anyhow::Result;
use std::collections::BTreeMap;
use weir_types::Name;
use weir_types::api::{ComparedCalls, Shadow, ShadowReport, VersionCalls};

/// Option of a shadow.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ShadowArgs {
    /// Give the new version copies of this percentage of the calls or inferences, from 1 to 100, and
    /// discard its answers
    #[arg(
        long,
        value_name = "PERCENT",
        conflicts_with_all = ["canary", "preview"],
        value_parser = clap::value_parser!(u8).range(i64::from(Shadow::PERCENT_MIN)..=i64::from(Shadow::PERCENT_MAX)),
    )]
    shadow: Option<u8>,
}

impl ShadowArgs {
    /// Whether a percentage is given.
    pub(super) fn is_given(&self) -> bool {
        self.shadow.is_some()
    }

    /// The option as a query of the deployment or push.
    pub(super) fn query(&self) -> Option<(&'static str, String)> {
        self.shadow.map(|percent| ("shadow", percent.to_string()))
    }
}

/// The comparison of a shadow, if the item in the collection `segment` has one.
pub(super) fn fetch(
    client: &Client,
    segment: &str,
    name: &Name,
    shadow: Option<Shadow>,
) -> Result<Option<ShadowReport>> {
    let path = format!("/v1/{segment}/{name}/shadow");
    shadow.map(|_| client.get(&path, &format!("show the shadow of {name}"))).transpose()
}

/// Describes a shadow and its comparison, one fact per line. `work` is the noun for the work that is
/// copied: calls or inferences.
pub(super) fn lines(report: &ShadowReport, work: &str) -> Vec<String> {
    let Shadow { version, percent, started_at_ms } = report.shadow;
    let ShadowReport { active, shadow_calls, active_calls, equal, different, skipped, .. } = report;
    let copies = shadow_calls.calls.calls;
    let mut lines = vec![
        format!(
            "version {version} gets copies of {percent} % of the {work} (started {})",
            age(started_at_ms)
        ),
        format!("{copies} copies: {equal} with equal results, {different} with different results"),
        format!("version {version}: {}", calls(shadow_calls)),
        format!("version {active}: {}", calls(active_calls)),
    ];
    if !skipped.is_empty() {
        lines.push(format!("skipped: {}", counts(skipped)));
    }
    lines
}

/// Describes the calls of a version.
fn calls(ComparedCalls { calls, p50_ms, statuses }: &ComparedCalls) -> String {
    let VersionCalls { calls, failed, p95_ms } = calls;
    let mut facts = vec![format!("{failed} of {calls} failed")];
    facts.extend(p50_ms.map(|ms| format!("p50 {ms:.1} ms")));
    facts.extend(p95_ms.map(|ms| format!("p95 {ms:.1} ms")));
    facts.extend((!statuses.is_empty()).then(|| counts(statuses)));
    facts.join(", ")
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<String> = counts.iter().map(|(label, count)| format!("{label} {count}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::Version;

    #[test]
    fn comparison_has_both_versions_and_the_skipped_calls() {
        let ran = |failed, statuses: &[(&str, u64)]| ComparedCalls {
            calls: VersionCalls { calls: 50, failed, p95_ms: Some(2.0) },
            p50_ms: Some(1.0),
            statuses: statuses.iter().map(|(class, count)| ((*class).to_owned(), *count)).collect(),
        };
        let report = ShadowReport {
            shadow: Shadow { version: Version(3), percent: 50, started_at_ms: 0 },
            active: Version(2),
            shadow_calls: ran(2, &[("2xx", 48), ("5xx", 2)]),
            active_calls: ran(0, &[("2xx", 50)]),
            equal: 48,
            different: 2,
            skipped: [("limit".to_owned(), 4)].into(),
            unreachable: Vec::new(),
        };
        let expected = [
            "50 copies: 48 with equal results, 2 with different results",
            "version 3: 2 of 50 failed, p50 1.0 ms, p95 2.0 ms, 2xx 48, 5xx 2",
            "version 2: 0 of 50 failed, p50 1.0 ms, p95 2.0 ms, 2xx 50",
            "skipped: limit 4",
        ];
        assert_eq!(lines(&report, "calls")[1..], expected);
    }
}
