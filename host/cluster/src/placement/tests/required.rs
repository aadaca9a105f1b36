//! Required copies of models on this node, and on a node that is linked to it.

use super::{Fixture, arrival, model};
use crate::placement::{CopyLoad, ResidentLoad};
use crate::wire::{AnnouncedModel, DispatcherCommand, NodeEvent};
use std::collections::BTreeSet;
use std::time::Duration;
use weir_scheduler::{Event, RequiredModel, Setup};
use weir_types::NodeId;

const TWO: NodeId = NodeId(2);

fn required() -> Vec<RequiredModel> {
    arrival(1).models.into_iter().map(|demand| RequiredModel { demand, copies_min: 1 }).collect()
}

impl Fixture {
    fn begin_load(&self) -> Option<CopyLoad> {
        self.placements.begin_load(&BTreeSet::new())
    }

    /// Reports that the device has the model in memory, or has nothing.
    fn resident(&self, is_there: bool) {
        let resident = AnnouncedModel { device: 0, model: model(), bytes: 100, parts: Vec::new() };
        let load = ResidentLoad { resident, time: Duration::from_millis(1), from: Vec::new() };
        self.placements.residents(0, || if is_there { vec![load] } else { Vec::new() });
    }

    /// Whether the scheduler has learned that the device released the model since the last call.
    fn is_released(&self) -> bool {
        self.events().iter().any(|event| matches!(event, Event::Released { .. }))
    }
}

#[tokio::test]
async fn required_copy_is_loaded_again_after_its_loss_and_released_at_once() {
    let node = Fixture::new(Setup::default());
    node.placements.require(required());
    let load = node.begin_load().unwrap();
    assert_eq!((load.device(), load.model()), (0, &model()));
    assert!(node.begin_load().is_none(), "the load is in progress");
    node.resident(true);
    drop(load);
    assert!(node.begin_load().is_none(), "the model is in memory");
    assert!(node.placements.is_granted(0, &model()), "it may leave when it is unused");
    node.resident(false);
    let resting = BTreeSet::from([(0, model())]);
    assert!(node.placements.begin_load(&resting).is_none());
    let load = node.begin_load().unwrap();
    node.resident(true);
    drop(load);
    assert!(!node.is_released());
    node.placements.require(Vec::new());
    assert!(node.is_released());
    assert!(!node.placements.is_granted(0, &model()));
}

#[tokio::test]
async fn release_during_a_load_is_reported_after_the_load() {
    let node = Fixture::new(Setup::default());
    node.placements.require(required());
    let load = node.begin_load().unwrap();
    node.placements.require(Vec::new());
    assert!(!node.is_released(), "its room is taken until the load has ended");
    node.resident(true);
    drop(load);
    assert!(node.is_released());
    // A failure is not one of a required copy any more.
    node.resident(false);
    node.placements.require(required());
    let load = node.begin_load().unwrap();
    node.placements.require(Vec::new());
    assert!(!load.fail());
    assert!(node.is_released());
}

#[tokio::test]
async fn failed_load_is_not_repeated_here() {
    let node = Fixture::new(Setup::default());
    node.placements.require(required());
    assert!(node.begin_load().unwrap().fail());
    assert!(node.begin_load().is_none());
    assert_eq!(node.placements.copies_missing(), 1);
}

#[tokio::test]
async fn linked_node_is_told_what_to_load_and_to_release() {
    let node = Fixture::new(Setup::default());
    node.lose_device();
    let mut two = node.join(TWO, Vec::new());
    node.placements.require(required());
    let commands = two.commands();
    assert!(
        matches!(&commands[..], [DispatcherCommand::Load { device: 0, model: of, .. }] if *of == model()),
        "{commands:?}"
    );
    assert!(node.begin_load().is_none(), "it is for the other node");
    // The same list again says nothing new.
    node.placements.require(required());
    assert_eq!(two.commands(), []);
    node.placements.require(Vec::new());
    assert_eq!(two.commands(), [DispatcherCommand::Release { device: 0, model: model() }]);
    assert!(!node.is_released(), "the other node says so");
    node.placements.hear(TWO, two.link, vec![NodeEvent::Released { device: 0, model: model() }]);
    assert!(node.is_released());
}
