//! Model repositories: folders of models in the layout of Triton Inference Server.
//!
//! A repository has a folder for each model, which has a folder for each version, `1/`, `2/` and so
//! on, and a `config.pbtxt`, which is optional ([`folder`]). [`config`] reads that file, in
//! protobuf's text format ([`text_format`]), and [`sync`] pushes the versions that a node lacks.
//! `docs/guides/model-repository.md` describes the supported settings.

mod config;
mod folder;
mod sync;
mod text_format;
mod watch;

pub(crate) use sync::{RepositorySync, SyncReport};
pub(crate) use watch::RepositoryWatch;
