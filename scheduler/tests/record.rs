//! Records of a scheduler replay to the same actions, or report where they differ.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write;
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, PolicyKind, Recorder, ReplayError, Replayed,
    Setup, recorded_arrivals, replay,
};
use weir_types::{FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version};

fn up() -> Event {
    let device = DeviceSpec {
        kind: "cpu".into(),
        platform: Platform::Cpu,
        capacity_bytes: 10,
        slots: 1,
        invocations_max: 1,
        rule: DeviceRule::default(),
    };
    Event::NodeUp { node: NodeId(0), devices: vec![device] }
}

fn arrival(id: u64) -> Event {
    let tenant = TenantId::default();
    let name = Name::new("m").unwrap();
    let version = Version(1);
    let model = ModelId { tenant: tenant.clone(), name: name.clone(), version };
    Event::Arrived(Arrival {
        invocation: InvocationId(id),
        function: FunctionId { tenant, name, version },
        models: vec![ModelDemand {
            model,
            bytes: 4,
            load_time_ns: Some(7),
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        }],
        deadline_at_ns: u64::MAX,
        priority: 0,
        batch: 1,
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 0,
        is_splittable: false,
        steps: Vec::new(),
    })
}

/// Records two invocations of one model, one after the other, on one device.
fn record(bytes_max: usize) -> (Recorder, Vec<Action>) {
    let setup = Setup::default();
    let mut scheduler = setup.build();
    let mut recorder = Recorder::new(&setup, bytes_max);
    let mut actions = Vec::new();
    let events = [up(), arrival(0), arrival(1), Event::Finished { invocation: InvocationId(0), used: None }];
    for (now_ns, event) in (0..).zip(events) {
        recorder.handle(&mut scheduler, now_ns, event, &mut actions);
    }
    (recorder, actions)
}

fn text(recorder: &mut Recorder) -> String {
    String::from_utf8(recorder.take_lines()).unwrap()
}

#[test]
fn record_replays_to_the_same_actions() {
    let (mut recorder, actions) = record(usize::MAX);
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Start { .. })).count(), 2);
    let lines = text(&mut recorder);
    assert!(!recorder.is_full());
    let played = Replayed { calls: 4, actions: actions.len() as u64, is_cut_short: false };
    assert_eq!(replay(lines.as_bytes()).unwrap(), played);
    assert_eq!(recorder.take_lines(), b"", "lines are taken once");
}

#[test]
fn arrivals_of_a_record_are_read_once_each() {
    let (mut recorder, _) = record(usize::MAX);
    let Event::Arrived(again) = arrival(1) else { unreachable!("it is an arrival") };
    recorder.record(9, &Event::Arrived(again), &[]);
    let lines = text(&mut recorder);
    let arrivals = recorded_arrivals(lines.as_bytes()).unwrap();
    let times: Vec<_> = arrivals.iter().map(|read| (read.at_ns, read.arrival.invocation.0)).collect();
    assert_eq!(times, [(1, 0), (2, 1)]);
    assert_eq!(Event::Arrived(arrivals[0].arrival.clone()), arrival(0));
    let error = recorded_arrivals(&b"{}\n{}\n"[..]).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}

/// If the writer was stopped, all complete lines count.
#[test]
fn truncated_record_replays_its_complete_lines() {
    let (mut recorder, _) = record(usize::MAX);
    let lines = text(&mut recorder);
    let replayed = replay(&lines.as_bytes()[..lines.len() - 3]).unwrap();
    assert_eq!((replayed.calls, replayed.is_cut_short), (3, true));
}

#[test]
fn record_respects_its_size_limit_and_replays() {
    let whole = text(&mut record(usize::MAX).0);
    for bytes_max in 0..=whole.len() {
        let (mut recorder, _) = record(bytes_max);
        let lines = text(&mut recorder);
        assert!(lines.len() <= bytes_max && whole.starts_with(&lines));
        assert_eq!(recorder.is_full(), lines.len() < whole.len());
        if !lines.is_empty() {
            assert_eq!(replay(lines.as_bytes()).unwrap().calls, lines.lines().count() as u64 - 1);
        }
    }
}

/// Another policy or version decides differently, and the first difference is reported.
#[test]
fn replay_reports_the_line_of_the_first_difference() {
    let (mut recorder, _) = record(usize::MAX);
    let lines = text(&mut recorder);
    let (before, last) = lines.trim_end().rsplit_once('\n').unwrap();
    let mut other = format!("{before}\n");
    writeln!(other, "{}", last.replacen("\"invocation\":1", "\"invocation\":9", 1)).unwrap();
    match replay(other.as_bytes()) {
        Err(ReplayError::Differs { line: 5, event, recorded, replayed }) => {
            assert!(event.contains("finished") && recorded.contains('9') && !replayed.contains('9'));
        }
        result => unreachable!("{result:?}"),
    }
}

#[test]
fn invalid_record_is_an_error_with_its_line() {
    let (mut recorder, _) = record(usize::MAX);
    let setup = text(&mut recorder).lines().next().unwrap().to_owned();
    let old = setup.replace("\"version\":6,", "");
    let unknown = setup.replace(PolicyKind::default().as_str(), "fastest");
    let bad = [
        (String::new(), "line 1"),
        ("{}\n".to_owned(), "line 1"),
        (format!("{unknown}\n"), "fastest"),
        (format!("{old}\n"), "version 1"),
        (format!("{}\n", setup.replace("\"version\":6", "\"version\":7")), "version 7"),
        (format!("{setup}\n{{}}\n"), "line 2"),
        (format!("{setup}\n{{\"now_ns\":-1,\"event\":\"woken\",\"actions\":[]}}\n"), "line 2"),
        (format!("{setup}\n{}\n", "[".repeat(100_000)), "line 2"),
        (format!("{setup}\n{}", " ".repeat(17 << 20)), "longer than"),
    ];
    for (record, why) in bad {
        let error = replay(record.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
