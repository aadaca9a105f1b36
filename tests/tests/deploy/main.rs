//! The files of `deploy/`.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod kubernetes;
mod monitoring;
