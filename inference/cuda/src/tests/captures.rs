//! Tests of drivers that fail to capture runs as graphs, or to repeat the graphs.

use super::*;

/// Driver calls that can fail during the capture and launch of a graph.
const FAILURES: [&str; 5] = [
    "fail_begin_capture",
    "fail_captured_launch",
    "fail_end_capture",
    "fail_instantiate",
    "fail_graph_launch",
];

/// Runs the digits model `count` times in this session, and returns the output of each run.
fn runs(setup: &Setup, session: &mut dyn Session, count: usize) -> Vec<Vec<f32>> {
    let input = setup.floats(&[2, 1, 8, 8], |at| (at * 7 % 17) as f32 / 17.0);
    (0..count).map(|_| values(&run(session, &input).unwrap()[0])).collect()
}

#[test]
fn failed_capture_falls_back_to_eager_launches() {
    for failure in FAILURES {
        for seed in 0..3 {
            let setup = Setup::new(seed);
            let model = setup.load("digits", read(DIGITS));
            let mut session = model.session(1).unwrap();
            // The first run is never captured.
            let eager = runs(&setup, &mut *session, 1);
            // If memory runs out while a graph is instantiated, idle memory is freed and the call
            // is retried once.
            setup.fake.set(failure, if failure == "fail_instantiate" { 2 } else { 1 });
            let later = runs(&setup, &mut *session, 5);
            assert!(later.iter().all(|run| *run == eager[0]), "{failure}, seed {seed}");
            assert_eq!(setup.fake.count("graph_launches"), 0, "{failure}: no further attempt is made");
            // Another session of the model makes no attempt either; another model is captured.
            let mut second = model.session(1).unwrap();
            assert!(runs(&setup, &mut *second, 3).iter().all(|run| *run == eager[0]));
            assert_eq!(setup.fake.count("graph_launches"), 0, "{failure}: attempts are counted by program");
            let other = setup.load("other", read(DIGITS));
            let mut other = other.session(1).unwrap();
            assert!(runs(&setup, &mut *other, 3).iter().all(|run| *run == eager[0]));
            assert_eq!(setup.fake.count("graph_launches"), 2, "{failure}: another model is captured");
        }
    }
}

#[test]
fn failed_graph_launch_falls_back_to_eager_launches() {
    let setup = Setup::new(1);
    let model = setup.load("digits", read(DIGITS));
    let mut session = model.session(1).unwrap();
    let before = runs(&setup, &mut *session, 4);
    assert_eq!(setup.fake.count("graph_launches"), 3);
    setup.fake.set("fail_graph_launch", 1);
    assert!(runs(&setup, &mut *session, 4).iter().all(|run| *run == before[0]));
    assert_eq!(setup.fake.count("graph_launches"), 3, "the graph is not used any more");
}
