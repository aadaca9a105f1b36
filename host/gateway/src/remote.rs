//! Remote addresses of requests.

use std::net::{IpAddr, Ipv6Addr};

/// The part of an address that one client has: all of an IPv4 address, and the network of 64 bits
/// of an IPv6 address.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}
