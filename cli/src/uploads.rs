//! Uploads of components, models and workflow documents to a node.

mod component;
mod form;
mod model;
mod workflow;

pub(crate) use component::{Component, ComponentUpload};
pub(crate) use form::{FormFields, labels_field, manifest_fields};
pub(crate) use model::ModelUpload;
pub(crate) use workflow::WorkflowUpload;
