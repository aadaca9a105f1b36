//! The KaaS thesis, chapter 4: Table 4.1.

use super::{Chart, ChartKind, Reproduction, SimulationError};
use crate::WorkflowPolicyKind;
use crate::sim::{TABLE_4_1, Table41Row, WorkflowOptions, table_4_1};

/// Figure of a row of the table.
type RowMeasure = fn(&Table41Row) -> f64;

pub(super) fn add(seeds: &[u64], all: &mut Reproduction) -> Result<(), SimulationError> {
    all.workflows = table_4_1(seeds, &WorkflowOptions::default())?;
    let rows = &all.workflows;
    let charts: [(&str, RowMeasure); 2] =
        [("latency", |row| row.metrics.latency_goodput), ("cost", |row| row.metrics.cost_goodput)];
    let chart = |(what, goodput): (&str, RowMeasure)| {
        let values = |policy: WorkflowPolicyKind| {
            let own = rows.iter().filter(|row| row.policy == policy.as_str());
            (policy.to_string(), own.map(goodput).collect())
        };
        Chart {
            name: format!("table4.1-{what}"),
            title: format!("Table 4.1: goodput by {what}"),
            x: "maximum latency, ms".into(),
            y: "workflows per second".into(),
            labels: TABLE_4_1.iter().map(|(slo_ms, _)| slo_ms.to_string()).collect(),
            series: WorkflowPolicyKind::ALL.into_iter().map(values).collect(),
            kind: ChartKind::Bars,
        }
    };
    let charts: Vec<Chart> = charts.into_iter().map(chart).collect();
    all.charts.extend(charts);
    Ok(())
}
