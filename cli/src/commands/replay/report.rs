//! The report of a replay.

use super::load::{RequestOutcome, SentRequest};
use super::plan::Plan;
use crate::error::{Exit, Problem};
use crate::output::table;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_scheduler::sim::{Chart, ChartKind};

/// Number of intervals into which the time is divided.
const INTERVALS: usize = 60;
/// An interval's label is shown at each so many intervals.
const LABEL_EVERY: usize = 10;
/// Maximum number of rows by target in the text.
const TARGET_ROWS_MAX: usize = 20;

/// Latencies and outcomes of the requests of a replay.
#[derive(Debug, Serialize)]
pub(super) struct ReplayReport {
    urls: Vec<String>,
    source: String,
    speed: f64,
    requests: usize,
    succeeded: usize,
    failed: usize,
    /// Requests beyond the limit of requests in flight.
    not_sent: usize,
    /// Requests by status, or by the reason why there is none.
    outcomes: BTreeMap<String, usize>,
    /// The text of the first failure.
    first_failure: Option<String>,
    /// Time from the first request to the last response.
    duration_s: f64,
    /// Requests per second until the last one was due.
    offered_per_s: f64,
    succeeded_per_s: f64,
    /// From the time of a request in the workload to the end of its response; of successes.
    latency_ms: Option<Spread>,
    /// How late the requests were sent.
    lag_ms: Option<Spread>,
    targets: Vec<TargetReport>,
    intervals: Vec<Interval>,
}

/// The spread of a measure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// Requests with one target.
#[derive(Debug, Serialize)]
struct TargetReport {
    name: String,
    path: String,
    requests: usize,
    succeeded: usize,
    latency_ms: Option<Spread>,
}

/// Requests that were due within an interval.
#[derive(Debug, Serialize)]
struct Interval {
    from_s: f64,
    requests: usize,
    succeeded: usize,
    latency_ms: Option<Spread>,
}

/// Counts and latencies of some requests.
#[derive(Debug, Clone, Default)]
struct Tally {
    requests: usize,
    latencies: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, sent: &SentRequest) {
        self.requests += 1;
        if sent.outcome.is_success() {
            self.latencies.push(sent.latency);
        }
    }
}

impl RequestOutcome {
    fn is_success(&self) -> bool {
        matches!(self, Self::Answered(200..=299, _))
    }

    fn name(&self) -> String {
        match self {
            Self::Answered(status, _) => status.to_string(),
            Self::Failed(why) => why.clone(),
            Self::NotSent => "not sent".to_owned(),
        }
    }

    /// The text of a failure.
    fn text(&self) -> Option<String> {
        match self {
            Self::Answered(status, text) if !self.is_success() => Some(format!("{status}: {text}")),
            Self::Failed(why) => Some(why.clone()),
            Self::Answered(..) | Self::NotSent => None,
        }
    }
}

impl Spread {
    /// The spread of some times in milliseconds; `None` if there are none.
    fn new(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        // The smallest time that the part does not exceed.
        let at = |per_mille: usize| {
            let rank = (times.len() * per_mille).div_ceil(1_000).max(1);
            times.get(rank - 1).copied().map(ms).unwrap_or_default()
        };
        let max = ms(*times.last()?);
        let mean = times.iter().copied().map(ms).sum::<f64>() / times.len() as f64;
        Some(Self { mean, p50: at(500), p90: at(900), p99: at(990), p999: at(999), max })
    }
}

impl ReplayReport {
    pub(super) fn new(plan: &Plan, urls: Vec<String>, speed: f64, sent: &[SentRequest]) -> Self {
        let last_due = sent.iter().map(|sent| sent.due).max().unwrap_or_default();
        let duration = sent.iter().map(|sent| sent.due + sent.latency).max().unwrap_or_default();
        let interval = (last_due / INTERVALS as u32).max(Duration::from_millis(1));
        let mut all = Tally::default();
        let mut targets = vec![Tally::default(); plan.targets.len()];
        let mut intervals = vec![Tally::default(); INTERVALS];
        let mut outcomes = BTreeMap::new();
        for request in sent {
            all.add(request);
            targets[plan.requests[request.request].target].add(request);
            let at = request.due.div_duration_f64(interval) as usize;
            intervals[at.min(INTERVALS - 1)].add(request);
            *outcomes.entry(request.outcome.name()).or_default() += 1;
        }
        let not_sent = sent.iter().filter(|sent| sent.outcome == RequestOutcome::NotSent).count();
        let lags = sent.iter().filter(|sent| sent.outcome != RequestOutcome::NotSent).map(|sent| sent.lag);
        let per_s = |count: usize, time: Duration| count as f64 / time.as_secs_f64().max(1e-3);
        let succeeded = all.latencies.len();
        let targets = plan.targets.iter().zip(targets).map(|(target, tally)| TargetReport {
            name: target.name.clone(),
            path: target.path.clone(),
            requests: tally.requests,
            succeeded: tally.latencies.len(),
            latency_ms: Spread::new(tally.latencies),
        });
        let intervals = (0..).zip(intervals).map(|(index, tally)| Interval {
            from_s: (interval * index).as_secs_f64(),
            requests: tally.requests,
            succeeded: tally.latencies.len(),
            latency_ms: Spread::new(tally.latencies),
        });
        Self {
            urls,
            source: plan.source.clone(),
            speed,
            requests: sent.len(),
            succeeded,
            failed: sent.len() - succeeded - not_sent,
            not_sent,
            outcomes,
            first_failure: sent.iter().find_map(|sent| sent.outcome.text()),
            duration_s: duration.as_secs_f64(),
            offered_per_s: per_s(sent.len(), if last_due.is_zero() { duration } else { last_due }),
            succeeded_per_s: per_s(succeeded, duration),
            latency_ms: Spread::new(all.latencies),
            lag_ms: Spread::new(lags.collect()),
            targets: targets.collect(),
            intervals: intervals.collect(),
        }
    }

    /// The latencies over the time at which the requests were due.
    pub(super) fn chart(&self) -> Chart {
        let label = |(at, interval): (usize, &Interval)| match at % LABEL_EVERY {
            0 => format!("{:.1}", interval.from_s),
            _ => String::new(),
        };
        let line = |name: &str, measure: fn(&Spread) -> f64| {
            let values =
                self.intervals.iter().map(|interval| interval.latency_ms.as_ref().map_or(0.0, measure));
            (name.to_owned(), values.collect())
        };
        Chart {
            name: "latency".to_owned(),
            title: format!("Latencies of {}", self.source),
            x: "s".to_owned(),
            y: "ms".to_owned(),
            labels: self.intervals.iter().enumerate().map(label).collect(),
            series: vec![
                line("p50", |spread| spread.p50),
                line("p99", |spread| spread.p99),
                line("maximum", |spread| spread.max),
            ],
            kind: ChartKind::Lines,
        }
    }

    pub(super) fn text(&self) -> String {
        let row = |name: String, counts: (usize, usize), spread: Option<&Spread>| {
            let ms = |measure: fn(&Spread) -> f64| {
                spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.1}", measure(spread)))
            };
            let counts = [counts.0.to_string(), counts.1.to_string()];
            let [requests, succeeded] = counts;
            let max = ms(|spread| spread.max);
            [name, requests, succeeded, ms(|s| s.mean), ms(|s| s.p50), ms(|s| s.p90), ms(|s| s.p99), max]
        };
        let header = ["", "REQUESTS", "SUCCEEDED", "MEAN MS", "P50", "P90", "P99", "MAX"];
        let mut rows = vec![row("all".to_owned(), (self.requests, self.succeeded), self.latency_ms.as_ref())];
        let mut targets: Vec<_> = self.targets.iter().filter(|target| target.requests > 0).collect();
        targets.sort_by_key(|target| std::cmp::Reverse(target.requests));
        let more = targets.len().saturating_sub(TARGET_ROWS_MAX);
        rows.extend(targets.into_iter().take(TARGET_ROWS_MAX).map(|target| {
            row(target.name.clone(), (target.requests, target.succeeded), target.latency_ms.as_ref())
        }));
        let mut lines = vec![table(header, rows)];
        if more > 0 {
            lines.push(format!("({more} more in the report)"));
        }
        lines.push(String::new());
        let outcomes = self.outcomes.iter().map(|(outcome, count)| format!("{outcome}: {count}"));
        lines.push(format!("Outcomes: {}", outcomes.collect::<Vec<_>>().join(", ")));
        lines.push(format!(
            "{:.1} requests/s for {:.1} s, {:.1} successes/s",
            self.offered_per_s, self.duration_s, self.succeeded_per_s
        ));
        if let Some(lag) = &self.lag_ms {
            lines.push(format!(
                "Lag: p50 {:.2} ms, p99 {:.2} ms, maximum {:.2} ms",
                lag.p50, lag.p99, lag.max
            ));
        }
        if let Some(failure) = &self.first_failure {
            lines.push(format!("First failure: {failure}"));
        }
        lines.join("\n")
    }

    /// Fails if no request succeeded.
    pub(super) fn check(&self) -> Result<()> {
        if self.succeeded > 0 || self.requests == 0 {
            return Ok(());
        }
        let unanswered = self.outcomes.keys().all(|outcome| outcome.parse::<u16>().is_err());
        let exit = if unanswered { Exit::Unreachable } else { Exit::Refused };
        let problem = Problem::new("no request succeeded").exit(exit);
        Err(problem.hint("check --url and --path; the first failure is shown above").into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PlannedRequest, ReplayTarget};
    use super::*;

    fn sent(request: usize, latency_ms: u64, outcome: RequestOutcome) -> SentRequest {
        let due = Duration::from_millis(100 * request as u64);
        let lag = Duration::from_micros(200);
        SentRequest { request, due, lag, latency: Duration::from_millis(latency_ms), outcome }
    }

    fn plan(requests: usize) -> Plan {
        let target = |name: &str| ReplayTarget { name: name.to_owned(), ..ReplayTarget::default() };
        let request = |index: usize| PlannedRequest {
            at: Duration::from_millis(100 * index as u64),
            target: index % 2,
        };
        Plan {
            source: "a file".to_owned(),
            targets: vec![target("even"), target("odd")],
            requests: (0..requests).map(request).collect(),
        }
    }

    #[test]
    fn report_counts_outcomes_and_spreads_of_successes() {
        let ok = || RequestOutcome::Answered(200, String::new());
        let requests = [
            sent(0, 10, ok()),
            sent(1, 30, ok()),
            sent(2, 20, ok()),
            sent(3, 900, RequestOutcome::Answered(503, "busy".to_owned())),
            sent(4, 0, RequestOutcome::NotSent),
            sent(5, 900, RequestOutcome::Failed("timeout".to_owned())),
        ];
        let report = ReplayReport::new(&plan(6), vec!["http://a".to_owned()], 2.0, &requests);
        assert_eq!((report.succeeded, report.failed, report.not_sent), (3, 2, 1));
        let latency = report.latency_ms.unwrap();
        assert_eq!((latency.mean, latency.p50, latency.p99, latency.max), (20.0, 20.0, 30.0, 30.0));
        assert_eq!(report.first_failure.as_deref(), Some("503: busy"));
        assert_eq!(report.outcomes["not sent"], 1);
        assert_eq!((report.targets[0].requests, report.targets[0].succeeded), (3, 2));
        assert_eq!(report.intervals.iter().map(|interval| interval.requests).sum::<usize>(), 6);
        assert_eq!((report.duration_s, report.offered_per_s), (1.4, 12.0));
        let shown = report.text();
        for part in
            ["SUCCEEDED", "even", "503: 1", "timeout: 1", "First failure: 503: busy", "Lag: p50 0.20 ms"]
        {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        report.check().unwrap();
        let chart = report.chart();
        assert_eq!((chart.labels.len(), chart.series[1].1[0]), (60, 10.0));
    }

    #[test]
    fn replay_without_a_success_fails() {
        let failed = [sent(0, 1, RequestOutcome::Failed("refused".to_owned()))];
        let report = ReplayReport::new(&plan(1), Vec::new(), 1.0, &failed);
        assert_eq!(report.latency_ms, None);
        assert!(report.check().unwrap_err().to_string().contains("no request succeeded"));
        ReplayReport::new(&plan(0), Vec::new(), 1.0, &[]).check().unwrap();
    }

    #[test]
    fn percentiles_are_measured_values() {
        let times = (1..=1_000).map(Duration::from_millis).collect();
        let spread = Spread::new(times).unwrap();
        assert_eq!(
            (spread.p50, spread.p90, spread.p99, spread.p999, spread.max),
            (500.0, 900.0, 990.0, 999.0, 1_000.0)
        );
        assert_eq!(Spread::new(Vec::new()), None);
    }
}
