//! The KaaS thesis, chapter 6: the traces of 6.1, and Figures 6.4 to 6.7.

use super::{Chart, ChartKind, Figure, Reproduction, SimulationError};
use crate::PolicyKind;
use crate::sim::{
    Foresight, KAAS_POLICIES, KaasReport, KaasTimes, Workload, kaas_cluster, kaas_policy, kaas_printed_lots,
    run,
};

const STEPS: u32 = 1_000;
const OCCUPANCIES: [f64; 6] = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0];
const DEVICES: [u32; 5] = [2, 4, 6, 8, 10];

pub(super) fn add(seeds: &[u64], all: &mut Reproduction) -> Result<(), SimulationError> {
    example(all)?;
    poisson(seeds, all)?;
    let depth = |occupancy: &f64| (format!("{:.0} %", occupancy * 100.0), 3, *occupancy);
    sweep(
        seeds,
        ("fig6.6-queue-depth", "Figure 6.6: arrival rate, 3 devices", "offered work"),
        OCCUPANCIES.iter().map(depth),
        all,
    )?;
    let devices = |devices: &u32| (devices.to_string(), *devices, 0.8);
    sweep(
        seeds,
        ("fig6.7-devices", "Figure 6.7: devices, offered work 80 %", "devices"),
        DEVICES.iter().map(devices),
        all,
    )
}

fn one(
    policy: PolicyKind,
    workload: &Workload,
    foresight: Foresight,
    seed: u64,
) -> Result<KaasReport, SimulationError> {
    let built = || kaas_policy(policy, workload, foresight, seed);
    let schedule = run(workload, &kaas_cluster(), built).map_err(|violation| SimulationError::Violation {
        seed,
        policy: policy.to_string(),
        violation,
    })?;
    Ok(KaasReport::from_schedule(workload, &schedule))
}

/// 6.1. The reference is the thesis itself: its traces are exact.
fn example(all: &mut Reproduction) -> Result<(), SimulationError> {
    let workload = KaasTimes::TRACES.example()?;
    let lots = kaas_printed_lots(&workload);
    let printed =
        [(25.0, 3.0, 5.0), (19.0, 2.0, 2.25), (26.0, 3.0, 2.5), (26.0, 3.0, 2.5), (19.0, 2.0, 2.25)];
    for (policy, (total, cold_starts, wait)) in KAAS_POLICIES.into_iter().zip(printed) {
        let report = one(policy, &workload, Foresight::Printed, lots)?;
        let rows = [
            ("total time", total, report.total),
            ("cold starts", cold_starts, report.cold_starts as f64),
            ("average wait", wait, report.wait),
        ];
        all.figures.extend(rows.map(|(what, paper, weir)| Figure {
            what: format!("6.1 {policy}: {what}"),
            paper: Some(paper),
            reference: Some(paper),
            weir,
        }));
    }
    Ok(())
}

/// 6.2, Figures 6.4 and 6.5.
fn poisson(seeds: &[u64], all: &mut Reproduction) -> Result<(), SimulationError> {
    let mut charts: Vec<Vec<f64>> = vec![Vec::new(); 3];
    for policy in KAAS_POLICIES {
        let mut sums = [0.0; 3];
        for seed in seeds {
            let workload = KaasTimes::TRACES.poisson(4, 0.8, STEPS, *seed)?;
            let report = one(policy, &workload, Foresight::None, *seed)?;
            let [resnet, bert] = report.wait_by_model;
            sums = [sums[0] + report.cold_starts as f64, sums[1] + resnet, sums[2] + bert];
        }
        let means = sums.map(|sum| sum / seeds.len().max(1) as f64);
        charts.iter_mut().zip(means).for_each(|(chart, mean)| chart.push(mean));
        let cold = Some(if policy == PolicyKind::Exclusive { 4.0 } else { 8.0 });
        let bert = (policy == PolicyKind::Srtf).then_some(80.65);
        let rows = [("cold starts", cold, cold), ("ResNet wait", None, None), ("BERT wait", bert, None)];
        all.figures.extend(rows.into_iter().zip(means).map(|((what, paper, reference), weir)| Figure {
            what: format!("6.2 {policy}: {what}"),
            paper,
            reference,
            weir,
        }));
    }
    let labels: Vec<String> = KAAS_POLICIES.iter().map(ToString::to_string).collect();
    let [cold, resnet, bert] = <[Vec<f64>; 3]>::try_from(charts).unwrap_or_default();
    let chart = |name: &str, title: &str, y: &str, series| Chart {
        name: name.into(),
        title: title.into(),
        x: "policy".into(),
        y: y.into(),
        labels: labels.clone(),
        series,
        kind: ChartKind::Bars,
    };
    all.charts.push(chart(
        "fig6.4-cold-starts",
        "Figure 6.4: cold starts",
        "cold starts",
        vec![("all".into(), cold)],
    ));
    let waits = vec![("ResNet".into(), resnet), ("BERT".into(), bert)];
    all.charts.push(chart("fig6.5-waits", "Figure 6.5: average time on queue", "timesteps", waits));
    Ok(())
}

/// 6.3: average time in the queue, by policy.
fn sweep(
    seeds: &[u64],
    (name, title, x): (&str, &str, &str),
    points: impl Iterator<Item = (String, u32, f64)>,
    all: &mut Reproduction,
) -> Result<(), SimulationError> {
    let mut series: Vec<(String, Vec<f64>)> =
        KAAS_POLICIES.iter().map(|policy| (policy.to_string(), Vec::new())).collect();
    let mut labels = Vec::new();
    for (label, devices, occupancy) in points {
        labels.push(label);
        for (policy, (_, waits)) in KAAS_POLICIES.into_iter().zip(&mut series) {
            let mut sum = 0.0;
            for seed in seeds {
                let workload = KaasTimes::TRACES.poisson(devices, occupancy, STEPS, *seed)?;
                sum += one(policy, &workload, Foresight::None, *seed)?.wait;
            }
            waits.push(sum / seeds.len().max(1) as f64);
        }
    }
    all.charts.push(Chart {
        name: name.into(),
        title: title.into(),
        x: x.into(),
        y: "average time on queue, timesteps".into(),
        labels,
        series,
        kind: ChartKind::Lines,
    });
    Ok(())
}
