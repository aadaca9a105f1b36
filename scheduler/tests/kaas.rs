//! The KaaS thesis, chapter 6: the printed traces of 6.1, and the cold starts and waits of 6.2.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use weir_scheduler::PolicyKind;
use weir_scheduler::sim::{
    Foresight, KAAS_POLICIES, KaasReport, KaasTimes, Workload, kaas_cluster, kaas_policy, kaas_printed_lots,
    run,
};

/// (arrival, model, time, device): 0 is ResNet, 1 is BERT.
type Dispatches = [(f64, u32, f64, u32); 4];

fn report(policy: PolicyKind, workload: &Workload, foresight: Foresight, seed: u64) -> KaasReport {
    let policy = || kaas_policy(policy, workload, foresight, seed);
    KaasReport::from_schedule(workload, &run(workload, &kaas_cluster(), policy).unwrap())
}

fn check(policy: PolicyKind, dispatches: Dispatches, total: f64, cold_starts: usize, waits: (f64, f64, f64)) {
    let workload = KaasTimes::TRACES.example().unwrap();
    let report = report(policy, &workload, Foresight::Printed, kaas_printed_lots(&workload));
    let (wait, resnet, bert) = waits;
    let expected = KaasReport {
        total,
        cold_starts,
        wait,
        wait_by_model: [resnet, bert],
        dispatches: dispatches.to_vec(),
    };
    assert_eq!(report, expected, "{policy}");
}

#[test]
fn kaas_round_robin_waits_for_its_turn() {
    let dispatches = [(0.0, 0, 0.0, 1), (1.0, 1, 1.0, 2), (2.0, 0, 6.0, 1), (3.0, 0, 19.0, 2)];
    check(PolicyKind::RoundRobin, dispatches, 25.0, 3, (5.0, 20.0 / 3.0, 0.0));
}

#[test]
fn kaas_balance_takes_the_next_free_device() {
    let dispatches = [(0.0, 0, 0.0, 1), (1.0, 1, 1.0, 2), (2.0, 0, 6.0, 1), (3.0, 0, 8.0, 1)];
    check(PolicyKind::Balance, dispatches, 19.0, 2, (2.25, 3.0, 0.0));
    check(PolicyKind::Exclusive, dispatches, 19.0, 2, (2.25, 3.0, 0.0));
}

#[test]
fn kaas_srtf_and_mlfqs_as_printed_know_the_future() {
    let dispatches = [(0.0, 0, 0.0, 1), (2.0, 0, 2.0, 2), (3.0, 0, 6.0, 1), (1.0, 1, 8.0, 2)];
    check(PolicyKind::Srtf, dispatches, 26.0, 3, (2.5, 1.0, 7.0));
    check(PolicyKind::Mlfqs, dispatches, 26.0, 3, (2.5, 1.0, 7.0));
}

#[test]
fn kaas_cold_starts_and_waits_under_a_poisson_process() {
    const SEEDS: u64 = 10;
    // By policy: ResNet, BERT, and all requests.
    let mut waits = [[0.0; 3]; 5];
    for seed in 0..SEEDS {
        let workload = KaasTimes::TRACES.poisson(4, 0.8, 1_000, seed).unwrap();
        let reports = KAAS_POLICIES.map(|policy| report(policy, &workload, Foresight::None, seed));
        assert_eq!(reports.each_ref().map(|report| report.cold_starts), [8, 8, 8, 8, 4], "seed {seed}");
        for (sums, KaasReport { wait_by_model: [resnet, bert], wait, .. }) in waits.iter_mut().zip(&reports) {
            let parts = [resnet, bert, wait].map(|wait| wait / SEEDS as f64);
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
    }
    let [round_robin, balance, srtf, mlfqs, _] = waits;
    assert!([balance, srtf, mlfqs].iter().all(|other| other[2] < round_robin[2]), "{waits:?}");
    assert!([round_robin, balance, mlfqs].iter().all(|other| srtf[0] < other[0]), "{waits:?}");
    assert!(srtf[1] >= 3.0 * srtf[0], "{waits:?}");
}
