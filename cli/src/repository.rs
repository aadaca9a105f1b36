//! Model repositories: folders or prefixes of buckets with models in the layout of Triton Inference
//! Server.
//!
//! A repository has a folder for each model, which has a folder for each version, `1/`, `2/` and so
//! on, and a `config.pbtxt`, which is optional ([`folder`]). [`source`] is where a repository is, and
//! [`bucket`] mirrors a bucket in a folder. [`config`] reads that file, in
//! protobuf's text format ([`text_format`]), and [`sync`] pushes the versions that a node lacks.
//! `docs/guides/model-repository.md` describes the supported settings.

mod bucket;
mod config;
mod folder;
mod source;
mod sync;
mod text_format;
mod watch;

pub(crate) use source::RepositoryAddress;
pub(crate) use sync::{RepositorySync, SyncReport};
pub(crate) use watch::RepositoryWatch;
