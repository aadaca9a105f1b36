//! Comparison of the OpenAPI document `docs/reference/openapi.yaml` with a running node.
//!
//! [`calls`] calls every operation, and provokes every documented error that does not depend on
//! load, on time or on lost nodes. Each response has to be documented with its status, its media
//! type and all of its properties. A unit test of `weir-gateway` compares the paths with the table
//! of routes, and [`methods`] compares the methods of each path. [`schemathesis`] sends many more
//! requests, which are generated from the document.

mod calls;
mod checker;
mod document;
mod methods;
mod probes;
mod reference;
mod schemas;
mod schemathesis;
