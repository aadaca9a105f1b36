//! The LALB paper: Figures 4 to 7, and the numbers in its text.

use super::{Chart, ChartKind, Figure, Reproduction, SimulationError, measure};
use crate::sim::{Preset, SimulatedCluster, SimulationMetrics};
use crate::{PolicyKind, PolicyOptions};

const WORKING_SETS: [u32; 3] = [15, 25, 35];
const LIMITS: [u32; 6] = [0, 5, 15, 25, 35, 45];
const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Lb, PolicyKind::Lalb, PolicyKind::LalbO3, PolicyKind::FinishFirst];

type Measure = fn(&SimulationMetrics) -> f64;

pub(super) fn add(seeds: &[u64], all: &mut Reproduction) -> Result<(), SimulationError> {
    let cluster = SimulatedCluster::default();
    let measure_one = |preset, functions, policy, limit| {
        let options = PolicyOptions { o3_limit: limit, ..PolicyOptions::default() };
        measure(preset, functions, &cluster, policy, &options, seeds)
    };
    for preset in [Preset::Trace, Preset::Overload] {
        let mut by_policy = Vec::new();
        for policy in POLICIES {
            let runs = WORKING_SETS.map(|functions| measure_one(preset, functions, policy, 25));
            by_policy.push((policy, runs.into_iter().collect::<Result<Vec<_>, _>>()?));
        }
        figures(preset, &by_policy, all);
        charts(preset, &by_policy, all);
    }
    let limits = LIMITS.map(|limit| measure_one(Preset::Overload, 35, PolicyKind::LalbO3, limit));
    by_limit(&limits.into_iter().collect::<Result<Vec<_>, _>>()?, all);
    Ok(())
}

fn figures(preset: Preset, by_policy: &[(PolicyKind, Vec<SimulationMetrics>)], all: &mut Reproduction) {
    let [(_, lb), (_, lalb), (_, o3), ..] = by_policy else { return };
    let is_trace = preset == Preset::Trace;
    let mut add = |what: &str,
                   measure: Measure,
                   of: &SimulationMetrics,
                   to: &SimulationMetrics,
                   paper: f64,
                   reference: Option<f64>| {
        all.figures.push(Figure {
            what: format!("{what}, {}: % below lb", preset.as_str()),
            paper: Some(paper),
            reference,
            weir: below(measure, of, to),
        });
    };
    let only = |on_trace: f64, on_overload: Option<f64>| if is_trace { Some(on_trace) } else { on_overload };
    add("lalb latency, working set 15", |m| m.avg, &lalb[0], &lb[0], 97.74, only(97.3, None));
    add("lalb latency, working set 25", |m| m.avg, &lalb[1], &lb[1], 93.33, None);
    add("lalb latency, working set 35", |m| m.avg, &lalb[2], &lb[2], 79.43, only(96.8, Some(84.0)));
    add("lalb-o3 latency, working set 35", |m| m.avg, &o3[2], &lb[2], 96.93, only(97.0, Some(97.4)));
    add("lalb misses, working set 15", |m| m.miss, &lalb[0], &lb[0], 94.11, only(96.0, None));
    add("lalb misses, working set 35", |m| m.miss, &lalb[2], &lb[2], 65.21, None);
    add("lalb-o3 misses, working set 35", |m| m.miss, &o3[2], &lb[2], 81.16, only(78.0, None));
    add("lalb duplicates, working set 15", |m| m.dup_top, &lalb[0], &lb[0], 48.96, None);
    add("lalb duplicates, working set 35", |m| m.dup_top, &lalb[2], &lb[2], 35.32, None);
    add("lalb-o3 false misses, working set 35", |m| m.false_miss, &o3[2], &lb[2], 3.65, None);
}

fn charts(preset: Preset, by_policy: &[(PolicyKind, Vec<SimulationMetrics>)], all: &mut Reproduction) {
    let measures: [(&str, &str, &str, Measure); 5] = [
        ("fig4a-latency", "Figure 4a: mean latency", "s", |m| m.avg),
        ("fig4b-misses", "Figure 4b: miss ratio", "part of requests", |m| m.miss),
        ("fig4c-utilisation", "Figure 4c: utilisation", "part of device time", |m| m.sm_util),
        ("fig5-false-misses", "Figure 5: false miss ratio", "part of misses", |m| m.false_miss),
        ("fig6-duplicates", "Figure 6: duplicates of the top model", "devices", |m| m.dup_top),
    ];
    for (name, title, y, measure) in measures {
        all.charts.push(Chart {
            name: format!("{name}-{}", preset.as_str()),
            title: format!("{title} ({})", preset.as_str()),
            x: "working set".into(),
            y: y.into(),
            labels: WORKING_SETS.iter().map(ToString::to_string).collect(),
            series: by_policy
                .iter()
                .map(|(policy, runs)| (policy.to_string(), runs.iter().map(measure).collect()))
                .collect(),
            kind: ChartKind::Bars,
        });
    }
}

fn by_limit(runs: &[SimulationMetrics], all: &mut Reproduction) {
    let (Some(none), Some(most)) = (runs.first(), runs.last()) else { return };
    let mut add = |what: &str, measure: Measure, paper: f64, reference: f64| {
        let paper = Some(paper);
        let reference = Some(reference);
        let what = format!("lalb-o3 {what}, limit 45, overload: % below limit 0");
        all.figures.push(Figure { what, paper, reference, weir: below(measure, most, none) });
    };
    add("latency", |m| m.avg, 85.1, 84.0);
    add("variance", |m| m.var, 95.93, 98.0);
    let measures: [(&str, &str, &str, Measure); 2] = [
        ("fig7-latency", "Figure 7: mean latency by limit", "s", |m| m.avg),
        ("fig7-misses", "Figure 7: miss ratio by limit", "part of requests", |m| m.miss),
    ];
    for (name, title, y, measure) in measures {
        all.charts.push(Chart {
            name: name.into(),
            title: format!("{title} (overload)"),
            x: "limit".into(),
            y: y.into(),
            labels: LIMITS.iter().map(ToString::to_string).collect(),
            series: vec![("lalb-o3".into(), runs.iter().map(measure).collect())],
            kind: ChartKind::Lines,
        });
    }
}

fn below(measure: Measure, of: &SimulationMetrics, to: &SimulationMetrics) -> f64 {
    100.0 * (1.0 - measure(of) / measure(to))
}
