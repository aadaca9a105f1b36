//! Lookups of host names.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::pin::Pin;

/// A lookup in progress.
pub type Resolved = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Source of addresses: the system, or a test's table.
pub trait Resolve: Send + Sync + 'static {
    /// Looks `host` up.
    fn resolve(&self, host: &str) -> Resolved;
}

/// The system's resolver: `/etc/hosts` and DNS.
pub(crate) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str) -> Resolved {
        let host = host.to_owned();
        Box::pin(async move {
            let lookup =
                move || (host.as_str(), 0).to_socket_addrs().map(|found| found.map(|to| to.ip()).collect());
            tokio::task::spawn_blocking(lookup).await.map_err(io::Error::other)?
        })
    }
}

/// The address that a host is, if it is no name. Other spellings of IPv4 addresses, such as
/// `0x7f.1`, count as names, which the system's resolver reads.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    host.parse().ok()
}
