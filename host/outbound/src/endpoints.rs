//! Endpoints of the node itself: its listener, and the stores of its cluster. Guests never reach
//! them, whatever the rules say.

use crate::class::{embedded, unmapped};
use crate::resolve::literal;
use crate::rule::normal_host;
use http::Uri;
use parking_lot::RwLock;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::OnceLock;

/// Host and port of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEndpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl StoreEndpoint {
    /// Reads the endpoint of a URL with the scheme `http` or `https`.
    #[must_use]
    pub fn from_url(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let default_port = match uri.scheme_str()? {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        Some(Self { host: normal_host(host), port: uri.port_u16().unwrap_or(default_port) })
    }
}

/// The endpoints of a node.
pub(crate) struct NodeEndpoints {
    listener: OnceLock<SocketAddr>,
    stores: Vec<Store>,
}

struct Store {
    endpoint: StoreEndpoint,
    /// The result of the last successful lookup.
    addresses: RwLock<Vec<IpAddr>>,
}

impl NodeEndpoints {
    pub(crate) fn new(stores: Vec<StoreEndpoint>) -> Self {
        let stores = stores.into_iter().map(|endpoint| {
            let addresses = literal(&endpoint.host).into_iter().map(unmapped).collect();
            Store { endpoint, addresses: RwLock::new(addresses) }
        });
        Self { listener: OnceLock::new(), stores: stores.collect() }
    }

    /// Sets the address on which the node listens. The first call counts.
    pub(crate) fn set_listener(&self, address: SocketAddr) {
        let _ = self.listener.set(SocketAddr::new(unmapped(address.ip()), address.port()));
    }

    /// Names of stores whose addresses must be looked up.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let hosts = self.stores.iter().map(|store| store.endpoint.host.as_str());
        hosts.filter(|host| literal(host).is_none())
    }

    /// Sets the addresses of the stores with this name.
    pub(crate) fn set_addresses(&self, name: &str, addresses: &[IpAddr]) {
        for store in self.stores.iter().filter(|store| store.endpoint.host == name) {
            *store.addresses.write() = addresses.iter().copied().map(unmapped).collect();
        }
    }

    /// Whether the name is one of a store. `host` is a normal name.
    pub(crate) fn names_one(&self, host: &str, port: u16) -> bool {
        self.stores.iter().any(|store| store.endpoint.host == host && store.endpoint.port == port)
    }

    /// Whether a connection to the address ends at the node or at a store.
    pub(crate) fn contain(&self, ip: IpAddr, port: u16) -> bool {
        let forms = [Some(unmapped(ip)), embedded(ip).map(IpAddr::from)];
        forms.into_iter().flatten().any(|ip| self.is_listener(ip, port) || self.is_store(ip, port))
    }

    fn is_listener(&self, ip: IpAddr, port: u16) -> bool {
        let Some(listener) = self.listener.get().filter(|listener| listener.port() == port) else {
            return false;
        };
        let on = listener.ip();
        let is_wildcard = on.is_unspecified();
        // Every loopback address counts, so that a name with several of them is refused as a whole.
        ip == on
            || (ip.is_loopback() && (is_wildcard || on.is_loopback()))
            || (is_wildcard && is_of_this_machine(ip))
    }

    fn is_store(&self, ip: IpAddr, port: u16) -> bool {
        let mut stores = self.stores.iter().filter(|store| store.endpoint.port == port);
        stores.any(|store| store.addresses.read().contains(&ip))
    }
}

/// Whether an interface of this machine has the address: then the system selects the same address
/// as the source of packets to it. Sends nothing.
fn is_of_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(listener: &str, stores: &[&str]) -> NodeEndpoints {
        let stores = stores.iter().map(|url| StoreEndpoint::from_url(url).unwrap()).collect();
        let endpoints = NodeEndpoints::new(stores);
        endpoints.set_listener(listener.parse().unwrap());
        endpoints
    }

    fn is_own(endpoints: &NodeEndpoints, address: &str) -> bool {
        let address: SocketAddr = address.parse().unwrap();
        endpoints.contain(address.ip(), address.port())
    }

    #[test]
    fn listener_is_recognised_in_every_form() {
        let loopback = node("127.0.0.1:9347", &[]);
        for own in ["127.0.0.1:9347", "127.9.9.9:9347", "[::1]:9347", "[::ffff:127.0.0.1]:9347"] {
            assert!(is_own(&loopback, own), "{own}");
        }
        for forwarded in ["[64:ff9b::127.0.0.1]:9347", "[2002:7f00:1::]:9347"] {
            assert!(is_own(&loopback, forwarded), "{forwarded}");
        }
        assert!(!is_own(&loopback, "127.0.0.1:9348"));
        assert!(!is_own(&loopback, "192.0.2.7:9347"), "another machine");
        let one = node("192.0.2.7:9347", &[]);
        assert!(is_own(&one, "192.0.2.7:9347"));
        assert!(!is_own(&one, "127.0.0.1:9347"), "nothing listens there");
        let wildcard = node("0.0.0.0:9347", &[]);
        assert!(is_own(&wildcard, "127.0.0.1:9347") && is_own(&wildcard, "[::1]:9347"));
        assert!(!is_own(&wildcard, "192.0.2.7:9347"));
    }

    #[test]
    fn addresses_of_interfaces_are_of_this_machine() {
        assert!(is_of_this_machine(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_of_this_machine("192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn stores_are_recognised_by_name_and_by_address() {
        let node =
            node("127.0.0.1:1", &["http://etcd-0:2379", "https://192.0.2.1", "http://[2001:db8::1]:9000"]);
        assert!(node.names_one("etcd-0", 2379) && !node.names_one("etcd-0", 80));
        assert!(is_own(&node, "192.0.2.1:443") && is_own(&node, "[2001:db8::1]:9000"));
        assert!(!is_own(&node, "192.0.2.9:2379"));
        assert_eq!(node.names().collect::<Vec<_>>(), ["etcd-0"]);
        node.set_addresses("etcd-0", &["192.0.2.9".parse().unwrap()]);
        assert!(is_own(&node, "192.0.2.9:2379") && !is_own(&node, "192.0.2.9:2380"));
    }
}
