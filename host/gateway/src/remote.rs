//! Remote addresses of requests.

use http::Request;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address at the other end of a connection, in the extensions of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteAddress(pub(crate) IpAddr);

/// The address at the other end of the connection of a request.
pub(crate) fn address_of<B>(request: &Request<B>) -> IpAddr {
    let address = request.extensions().get::<RemoteAddress>();
    address.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.0)
}

/// The part of an address that one client has: all of an IPv4 address, and the network of 64 bits
/// of an IPv6 address.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}
