//! Ends of calls that were forwarded to another node.

use super::{Fixture, TestRequester, arrival};
use crate::placement::ForwardStep;
use crate::wire::{DispatcherCommand, Granted, NodeEvent};
use weir_scheduler::{DeviceUse, Event, Setup};
use weir_telemetry::TextFormat;
use weir_types::{InvocationId, NodeId};

const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const FOUR: NodeId = NodeId(4);
const CALL: InvocationId = InvocationId(1);
const USED: DeviceUse = DeviceUse { device_time_ns: 5, run_time_ns: 6, batch_items: 1, wait_ns: 7 };

fn cancelled(used: DeviceUse) -> NodeEvent {
    NodeEvent::Cancelled { invocation: CALL, used: Some(used) }
}

impl Fixture {
    fn hear(&self, from: &TestRequester, event: NodeEvent) {
        self.placements.hear(from.node, from.link, vec![event]);
    }
}

fn is_asked_for_the_end(node: &mut TestRequester) -> bool {
    matches!(node.commands()[..], [DispatcherCommand::Abandoned { invocation: CALL }])
}

#[tokio::test]
async fn node_that_ran_an_abandoned_call_reports_its_use() {
    let stage = Fixture::new(Setup::default());
    let mut two = stage.join(TWO, Vec::new());
    stage.lose_device();
    let (remote, call) = stage.place_remotely(1).await;
    remote.progress.set(ForwardStep::Sent);
    drop(call);
    assert_eq!(stage.ends(), [], "it may still run there");
    assert!(is_asked_for_the_end(&mut two));
    stage.hear(&two, cancelled(USED));
    assert_eq!(stage.ends(), [Event::Cancelled { invocation: CALL, used: Some(USED) }]);
}

#[tokio::test]
async fn node_that_ran_a_call_compares_the_estimate_of_its_placement() {
    let stage = Fixture::new(Setup::default());
    let _two = stage.join(TWO, Vec::new());
    stage.lose_device();
    let (remote, call) = stage.place_remotely(1).await;
    let granted = Granted { device: Some(0), ..remote.granted };
    assert!(granted.estimate_ns.is_some_and(|estimate_ns| estimate_ns > 0));
    drop(call);

    let other = Fixture::new(Setup::default());
    for (has_succeeded, count) in [(false, 0), (true, 1)] {
        let (_, call) = other.placements.granted(&granted, arrival(1));
        call.ended(has_succeeded);
        drop(call);
        let text = other.metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        let line = format!("weir_placement_estimate_ratio_count{{kind=\"cpu\"}} {count}");
        assert_eq!(text.contains(&line), has_succeeded, "{text}");
    }
}

#[tokio::test]
async fn call_that_was_not_sent_costs_nothing() {
    let stage = Fixture::new(Setup::default());
    let mut two = stage.join(TWO, Vec::new());
    stage.lose_device();
    let (_, call) = stage.place_remotely(1).await;
    drop(call);
    let unused = Event::Cancelled { invocation: CALL, used: Some(DeviceUse::default()) };
    assert_eq!(stage.ends(), [unused]);
    assert!(two.commands().is_empty());
}

#[tokio::test]
async fn abandoned_call_of_another_node_ends_where_it_runs() {
    let stage = Fixture::new(Setup::default());
    stage.lose_device();
    let mut two = stage.join(TWO, Vec::new());
    let [mut three, four] = [THREE, FOUR].map(|node| stage.join_without_device(node));
    let arrived = NodeEvent::Arrived { arrival: arrival(1), deadline_in_ns: u64::MAX, due_in_ns: None };
    stage.hear(&three, arrived);
    let commands = three.commands();
    assert!(matches!(commands[..], [DispatcherCommand::Start { node: TWO, .. }]), "{commands:?}");
    stage.hear(&three, NodeEvent::Abandoned { invocation: CALL });
    assert!(is_asked_for_the_end(&mut two));
    stage.hear(&four, cancelled(USED));
    assert_eq!(stage.ends(), [], "only nodes that take part report the end of a call");
    stage.hear(&two, cancelled(USED));
    assert_eq!(stage.ends(), [Event::Cancelled { invocation: CALL, used: Some(USED) }]);
}

#[tokio::test]
async fn call_that_is_placed_again_is_not_ended_by_its_earlier_node() {
    let stage = Fixture::new(Setup::default());
    let two = stage.join(TWO, Vec::new());
    stage.lose_device();
    let (remote, call) = stage.place_remotely(1).await;
    remote.progress.set(ForwardStep::Sent);
    drop(call);
    stage.placements.leave(TWO, two.link, false);
    let two = stage.join(TWO, Vec::new());
    let three = stage.join(THREE, Vec::new());
    let (again, call) = stage.place_remotely(1).await;
    let (runs, other) = if &*again.address == "node:2" { (&two, &three) } else { (&three, &two) };
    stage.ends();
    stage.hear(other, cancelled(USED));
    assert_eq!(stage.ends(), []);
    again.progress.set(ForwardStep::Answered);
    drop(call);
    stage.hear(runs, cancelled(USED));
    assert_eq!(stage.ends(), [Event::Cancelled { invocation: CALL, used: Some(USED) }]);
}

#[tokio::test]
async fn node_reports_an_abandoned_call_that_it_does_not_have() {
    let stage = Fixture::new(Setup::default());
    let call = stage.place(1).await;
    stage.placements.execute(vec![DispatcherCommand::Abandoned { invocation: CALL }]);
    assert_eq!(stage.ends(), [], "the call runs here");
    drop(call);
    stage.ends();
    stage.placements.execute(vec![DispatcherCommand::Abandoned { invocation: CALL }]);
    assert_eq!(stage.ends(), [Event::Cancelled { invocation: CALL, used: Some(DeviceUse::default()) }]);
}
