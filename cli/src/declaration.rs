//! Declarations: files that list the functions, models and workflows that a node should have, and
//! their differences from the state of the node. `docs/guides/apply.md` describes the format.
//!
//! Files are read ([`document`], [`environment`]), completed by the files that they name
//! ([`resolve`]), and compared with the node's state ([`current`]) by [`plan`], which is pure.

mod document;
mod environment;
mod names;
mod resolve;
mod sources;

mod current;
mod declared;
mod export;
mod fields;

mod plan;
mod report;

pub(crate) use current::Current;
pub(crate) use declared::{Content, Declared, DeclaredCanary, DeclaredModel, Kind};
pub(crate) use export::Export;
pub(crate) use plan::{Action, Plan, Step};
pub(crate) use report::PlanReport;
pub(crate) use resolve::{hash, labels_file};
pub(crate) use sources::read;
