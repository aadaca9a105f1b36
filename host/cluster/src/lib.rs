//! A node's part in a cluster: placements of calls by a scheduler, membership, the link to the
//! dispatcher, and forwarding of calls to other nodes.
//!
//! A single node uses [`Placements`] only, with its own scheduler.

mod config;
pub use config::{ClusterConfig, EtcdTlsConfig, PrefetchConfig};

mod cluster;
pub use cluster::{
    ActivityReport, Cluster, EVENTS_PATH, ForwardedCall, GRACE, GRANT, LINK_PATH, MEMBERSHIP, NodeAuth,
    NotForwarded, OUTCOMES_PATH, Participation, REFUSED, answer_events, answer_link, answer_outcome, join,
    refused, restore_host,
};

#[cfg(any(test, fuzzing))]
pub use cluster::fuzz;

mod placement;
pub use placement::{
    CopyLoad, HealthChange, LocalPlacement, Placement, PlacementConfig, PlacementGuard, Placements,
    RemotePlacement, ResidencyChanges, ResidentLoad, SchedulerConfig, ShadowConfig, UseRecorder,
};

mod upkeep;
pub use upkeep::keep_store_small;

mod wire;
pub use wire::{AnnouncedModel, ForwardGrant, Granted, StagedModel};
