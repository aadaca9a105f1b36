//! Schedulers that take over learn the running calls before they place others.

use super::{Fixture, TestRequester, arrival, device, model};
use crate::placement::clock::now;
use crate::placement::{Link, PlacementGuard, ResidentLoad};
use crate::wire::{
    AnnouncedInvocation, AnnouncedModel, DispatcherCommand, Granted, Hello, NodeEvent, RUNNING_PER_MESSAGE,
    STAGED_PER_MESSAGE, StagedModel,
};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_call::Objective;
use weir_scheduler::{Event, Rejection, Settings, Setup, StorageTier};
use weir_types::{ErrorCode, InvocationId, ModelId, Name, NodeId};

const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);

fn running(invocation: u64, origin: Option<NodeId>) -> AnnouncedInvocation {
    AnnouncedInvocation { arrival: arrival(invocation), deadline_in_ns: u64::MAX, device: Some(0), origin }
}

fn granted(origin: NodeId, is_fallback: bool) -> Granted {
    let (models, evict) = Default::default();
    Granted { device: Some(0), models, evict, origin: Some(origin), estimate_ns: None, is_fallback }
}

impl Fixture {
    /// Has the node ask a dispatcher, and returns the messages that it sends first.
    fn ask(&self) -> Vec<NodeEvent> {
        let (events, mut sent) = mpsc::channel(1_000);
        self.placements.ask(Link { events, broken: CancellationToken::new() });
        std::iter::from_fn(|| sent.try_recv().ok()).collect()
    }

    fn leaves(&self, node: &TestRequester) {
        self.placements.leave(node.node, node.link, false);
    }
}

#[tokio::test]
async fn node_announces_calls_that_it_runs_for_others() {
    let stage = Fixture::new(Setup::default());
    let own = stage.place(1).await;
    let (_, forwarded) = stage.placements.granted(&granted(TWO, false), arrival(2));
    let (_, fallback) = stage.placements.granted(&granted(TWO, true), arrival(3));
    let sent = stage.ask();
    let [NodeEvent::Hello(Hello { running, has_more: false, .. })] = &sent[..] else { panic!("{sent:?}") };
    let mut origins: Vec<_> =
        running.iter().map(|running| (running.arrival.invocation.0, running.origin)).collect();
    origins.sort_unstable();
    assert_eq!(origins, [(1, None), (2, Some(TWO))], "no scheduler knows the fallback");
    drop((own, forwarded, fallback));
}

#[tokio::test]
async fn long_announcement_is_split_and_nothing_is_placed_before_its_end() {
    let node = Fixture::new(Setup::default());
    let count = 2 * RUNNING_PER_MESSAGE + 1;
    let grant = |invocation| node.placements.granted(&granted(TWO, false), arrival(invocation)).1;
    let calls: Vec<PlacementGuard> = (100..).take(count).map(grant).collect();
    let mut sent = node.ask().into_iter();
    let Some(NodeEvent::Hello(hello)) = sent.next() else { panic!("no introduction") };
    let hello = Hello { node: THREE, devices: vec![device()], ..hello };
    assert!(hello.has_more && hello.running.len() == RUNNING_PER_MESSAGE);

    let stage = Fixture::new(Setup::default());
    let (commands, _received) = mpsc::channel(10);
    let link = stage.placements.join(hello, commands, CancellationToken::new()).unwrap();
    let objective = Objective::default();
    let mut placed = std::pin::pin!(stage.placements.place(arrival(1), &objective, now()));
    for event in sent {
        assert!(futures::poll!(&mut placed).is_pending());
        stage.placements.hear(THREE, link, vec![event]);
    }
    assert!(placed.await.is_ok());
    let events = stage.events();
    let adopted = events.iter().filter(|event| matches!(event, Event::Running { .. })).count();
    assert_eq!(adopted, count);
    drop(calls);
}

#[tokio::test]
async fn new_dispatcher_places_nothing_until_all_nodes_have_announced_their_calls() {
    let stage = Fixture::new(Setup::default());
    let objective = Objective::default();
    assert!(stage.placements.await_nodes(&[TWO, THREE]));
    let mut placed = std::pin::pin!(stage.placements.place(arrival(1), &objective, now()));
    assert!(futures::poll!(&mut placed).is_pending());
    stage.join(TWO, vec![running(2, None)]);
    assert!(futures::poll!(&mut placed).is_pending());
    stage.join(THREE, Vec::new());
    assert!(placed.await.is_ok());

    // Nodes that have left are not awaited, and neither is any node for ever.
    for left in [&[TWO][..], &[]] {
        let stage = Fixture::new(Setup::default());
        assert!(stage.placements.await_nodes(&[TWO, THREE]));
        let mut placed = std::pin::pin!(stage.placements.place(arrival(1), &objective, now()));
        stage.placements.await_only(left);
        assert_eq!(futures::poll!(&mut placed).is_ready(), left.is_empty());
        if !left.is_empty() {
            let two = stage.join(TWO, Vec::new());
            stage.leaves(&two);
            assert!(placed.await.is_ok());
        }
    }
}

#[tokio::test]
async fn forwarded_call_is_lost_with_the_node_that_runs_it() {
    let stage = Fixture::new(Setup::default());
    let mut three = stage.join_without_device(THREE);
    let two = stage.join(TWO, vec![running(1, Some(THREE))]);
    assert!(stage.events().iter().any(|event| matches!(event, Event::Running { node: TWO, .. })));
    stage.leaves(&two);
    let commands = three.commands();
    let [DispatcherCommand::Reject { invocation, why, .. }] = commands[..] else { panic!("{commands:?}") };
    assert_eq!((invocation, why), (InvocationId(1), Rejection::NodeLost));
}

#[tokio::test]
async fn forwarded_call_outlives_the_link_of_the_node_that_received_it() {
    let stage = Fixture::new(Setup::default());
    let mut two = stage.join(TWO, Vec::new());
    stage.lose_device();
    let three = stage.join_without_device(THREE);
    let arrived = NodeEvent::Arrived { arrival: arrival(1), deadline_in_ns: u64::MAX, due_in_ns: None };
    stage.placements.hear(THREE, three.link, vec![arrived]);
    stage.leaves(&three);
    assert_eq!(stage.ends(), [], "it runs on another node");
    let commands = two.commands();
    let invocation = InvocationId(1);
    assert!(
        matches!(commands[..], [DispatcherCommand::Abandoned { invocation: asked }] if asked == invocation),
        "{commands:?}"
    );
    stage.join_without_device(THREE);
    assert_eq!(stage.ends(), []);
    let used = Default::default();
    stage.placements.hear(TWO, two.link, vec![NodeEvent::Finished { invocation, used }]);
    assert_eq!(stage.ends(), [Event::Finished { invocation, used: Some(used) }]);
}

/// A node announces where its models are to a new dispatcher, in as many messages as it takes.
#[tokio::test]
async fn new_dispatcher_learns_where_models_are() {
    let node = Fixture::new(Setup::default());
    let count = 2 * STAGED_PER_MESSAGE + 1;
    let staged = |number: usize| StagedModel {
        model: ModelId { name: Name::new(&format!("m{number}")).unwrap(), ..model() },
        bytes: vec![(StorageTier::Memory, 7)],
        moved: None,
    };
    node.placements.staged((0..count).map(staged).collect());
    let mut sent = node.ask().into_iter();
    let Some(NodeEvent::Hello(hello)) = sent.next() else { panic!("no introduction") };
    assert_eq!((hello.origin, hello.staged.len()), (StorageTier::Disk, STAGED_PER_MESSAGE));
    let stage = Fixture::new(Setup::default());
    let (commands, _received) = mpsc::channel(10);
    let hello = Hello { node: THREE, origin: StorageTier::ObjectStore, ..hello };
    let link = stage.placements.join(hello, commands, CancellationToken::new()).unwrap();
    sent.for_each(|event| stage.placements.hear(THREE, link, vec![event]));
    let events = stage.events();
    let origin = Event::Origin { node: THREE, tier: StorageTier::ObjectStore };
    assert!(events.contains(&origin), "{events:?}");
    let learnt = events.iter().filter_map(|event| match event {
        Event::Staged { node: THREE, model, bytes, moved: None }
            if bytes[..] == [(StorageTier::Memory, 7)] =>
        {
            Some(model)
        }
        _ => None,
    });
    assert_eq!(learnt.collect::<BTreeSet<_>>().len(), count);
}

/// The scheduler learns the time of a load for the tier that its bytes came from, whatever was
/// reported before.
#[tokio::test]
async fn load_is_reported_with_the_tier_that_it_came_from() {
    let stage = Fixture::new(Setup::default());
    let staged = |tier| StagedModel { model: model(), bytes: vec![(tier, 100)], moved: None };
    stage.placements.staged(vec![staged(StorageTier::Memory)]);
    stage.events();
    let resident = AnnouncedModel { device: 0, model: model(), bytes: 100, parts: Vec::new() };
    let time = Duration::from_millis(5);
    let load = || vec![ResidentLoad { resident, time, from: vec![(StorageTier::Disk, 100)] }];
    assert_eq!(stage.placements.residents(0, load).loaded.len(), 1);
    let events = stage.events();
    assert!(
        matches!(
            &events[..],
            [Event::Staged { bytes, .. }, Event::Loaded { load_time_ns: Some(5_000_000), .. }]
                if bytes.is_empty()
        ),
        "the disk is where this node has models unless it reports them: {events:?}"
    );
}

/// A node without devices that rejects calls without a device at once.
fn activator() -> Fixture {
    let settings = Settings { device_wait_ms: 0, ..Settings::default() };
    Fixture::with_devices(Setup { settings, ..Setup::default() }, Vec::new())
}

#[tokio::test]
async fn node_without_devices_rejects_no_call_until_it_is_the_dispatcher() {
    let node = activator();
    let objective = Objective::default();
    let mut placed = std::pin::pin!(node.placements.place(arrival(1), &objective, now()));
    assert!(futures::poll!(&mut placed).is_pending());
    node.ask();
    node.placements.place_alone();
    assert!(futures::poll!(&mut placed).is_pending(), "the next dispatcher may have a device");
    assert!(node.placements.await_nodes(&[]));
    node.placements.await_only(&[]);
    assert_eq!(placed.await.err().map(|fault| fault.code), Some(ErrorCode::NoDevice));
}

#[tokio::test]
async fn stopping_node_refuses_waiting_and_later_calls() {
    let node = activator();
    let objective = Objective::default();
    let mut placed = std::pin::pin!(node.placements.place(arrival(1), &objective, now()));
    assert!(futures::poll!(&mut placed).is_pending());
    node.placements.refuse_all();
    assert_eq!(placed.await.err().map(|fault| fault.code), Some(ErrorCode::Unavailable));
    let late = node.placements.place(arrival(2), &objective, now()).await;
    assert_eq!(late.err().map(|fault| fault.code), Some(ErrorCode::Unavailable));
}
