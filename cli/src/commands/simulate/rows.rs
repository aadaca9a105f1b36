//! Results of `weir simulate`, as tables, charts and JSON.

use super::bound::LatencyBracket;
use crate::output::table;
use serde::Serialize;
use weir_scheduler::PolicyKind;
use weir_scheduler::sim::{Chart, ChartKind, SimulationMetrics};

/// One row of the result.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) policy: PolicyName,
    /// Whether requests that would miss their SLO were rejected on arrival; `None` without SLOs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) admission: Option<bool>,
    #[serde(flatten)]
    pub(super) metrics: SimulationMetrics,
    #[serde(flatten)]
    pub(super) bracket: Option<BracketedMean>,
}

/// A mean latency compared with that of other schedules.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct BracketedMean {
    #[serde(flatten)]
    pub(super) bracket: LatencyBracket,
    /// The mean latency relative to the lower bound.
    pub(super) of_bound: f64,
}

/// A policy, serialized by its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyName(pub(super) PolicyKind);

impl Serialize for PolicyName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

/// Tables of all results.
pub(super) fn text(rows: &[Row]) -> String {
    let mut more = String::new();
    if rows.iter().any(|row| row.admission.is_some()) {
        more = format!("\n{}", slos(rows));
    }
    if rows.iter().any(|row| row.bracket.is_some()) {
        more = format!("{more}\n{}", brackets(rows));
    }
    let header = [
        "POLICY",
        "MEAN S",
        "P50 S",
        "P99 S",
        "VARIANCE",
        "MISSES",
        "FALSE",
        "BUSY",
        "COPIES",
        "WAIT MAX S",
        "FAIRNESS",
        "LOST",
    ];
    let cells = rows.iter().map(|row| {
        let m = &row.metrics;
        [
            row.name(),
            format!("{:.3}", m.avg),
            format!("{:.3}", m.p50),
            format!("{:.3}", m.p99),
            format!("{:.2}", m.var),
            format!("{:.2} %", 100.0 * m.miss),
            format!("{:.1} %", 100.0 * m.false_miss),
            format!("{:.1} %", 100.0 * m.sm_util),
            format!("{:.2}", m.dup_top),
            format!("{:.2}", m.wait_max),
            format!("{:.3}", m.fairness),
            format!("{:.2} %", 100.0 * m.rejected),
        ]
    });
    table(header, cells) + &more
}

/// Table of mean latencies, relative to the lower bound.
fn brackets(rows: &[Row]) -> String {
    let header = ["POLICY", "MEAN S", "BOUND S", "OF BOUND", "KNOWN S", "OF BOUND"];
    let cells = rows.iter().filter_map(|row| {
        let BracketedMean { bracket: LatencyBracket { bound_s, known_s }, of_bound } = row.bracket?;
        Some([
            row.name(),
            format!("{:.3}", row.metrics.avg),
            format!("{bound_s:.3}"),
            format!("{of_bound:.3}"),
            format!("{known_s:.3}"),
            format!("{:.3}", known_s / bound_s),
        ])
    });
    table(header, cells)
}

/// Table of the results of requests with an SLO.
fn slos(rows: &[Row]) -> String {
    let header = ["POLICY", "GOODPUT /S", "KEPT", "TURNED AWAY", "MISSED", "ON TRIAL", "COST EACH"];
    let percent = |part: f64| format!("{:.2} %", 100.0 * part);
    let cells = rows.iter().map(|row| {
        let m = &row.metrics;
        [
            row.name(),
            format!("{:.3}", m.goodput),
            percent(m.slo_met),
            percent(m.slo_rejected),
            percent(m.slo_missed),
            percent(m.slo_on_trial),
            format!("{:.3}", m.cost),
        ]
    });
    table(header, cells)
}

impl Row {
    fn name(&self) -> String {
        let admission = if self.admission == Some(true) { " + admission" } else { "" };
        format!("{}{admission}", self.policy.0)
    }
}

/// Bar charts with one bar for each row.
pub(super) fn charts(rows: &[Row]) -> Vec<Chart> {
    type Measure = fn(&SimulationMetrics) -> f64;
    let measures: [(&str, &str, &str, Measure); 4] = [
        ("mean-latency", "Mean latency", "s", |m| m.avg),
        ("p99-latency", "99th percentile of the latency", "s", |m| m.p99),
        ("misses", "Misses", "part of requests", |m| m.miss),
        ("utilisation", "Utilisation", "part of device time", |m| m.sm_util),
    ];
    let chart = |(name, title, y, measure): (&str, &str, &str, Measure)| Chart {
        name: name.into(),
        title: title.into(),
        x: "policy".into(),
        y: y.into(),
        labels: rows.iter().map(Row::name).collect(),
        series: vec![("mean over seeds".into(), rows.iter().map(|row| measure(&row.metrics)).collect())],
        kind: ChartKind::Bars,
    };
    let of_slos: [(&str, &str, &str, Measure); 3] = [
        ("goodput", "Goodput: requests that kept their SLO", "per second", |m| m.goodput),
        ("slo-rejections", "Requests turned away", "part of those with an SLO", |m| m.slo_rejected),
        ("slo-misses", "Requests that were served and missed their SLO", "part of those with an SLO", |m| {
            m.slo_missed
        }),
    ];
    let of_slos = of_slos.into_iter().filter(|_| rows.iter().any(|row| row.admission.is_some()));
    measures.into_iter().chain(of_slos).map(chart).collect()
}
