//! Classes of addresses: public, or reserved for a special purpose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Purpose of an address, from the registries of special-purpose addresses of IANA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AddressClass {
    /// Globally reachable.
    Public,
    /// `0.0.0.0/8` and `::`, which systems take for their own address.
    Unspecified,
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `169.254.0.0/16` and `fe80::/10`, with the metadata service of most clouds.
    LinkLocal,
    /// RFC 1918.
    Private,
    /// `100.64.0.0/10`, the shared address space of carrier-grade NAT (RFC 6598).
    Shared,
    /// `fc00::/7`.
    UniqueLocal,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// Examples in documentation.
    Documentation,
    /// Benchmarks of network devices.
    Benchmark,
    /// Platform services of a cloud under a public address.
    CloudPlatform,
    /// All other addresses that are not globally reachable.
    Reserved,
}

impl AddressClass {
    /// Whether an `allow` rule may open addresses of the class.
    pub(crate) fn may_be_allowed(self) -> bool {
        !matches!(self, Self::Unspecified | Self::Multicast | Self::Broadcast)
    }

    /// The label of the metric.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Private => "private",
            Self::Shared => "shared",
            Self::UniqueLocal => "unique-local",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Benchmark => "benchmark",
            Self::CloudPlatform => "cloud-platform",
            Self::Reserved => "reserved",
        }
    }
}

/// IPv4 address of an IPv4-mapped address, which the system connects to by IPv4; any other address
/// unchanged.
pub(crate) fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// IPv4 address inside an IPv6 address that a translator or a relay forwards to by IPv4: NAT64,
/// 6to4, IPv4-translated and IPv4-compatible addresses.
pub(crate) fn embedded(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = unmapped(ip) else { return None };
    let low = |at: usize| {
        let octets = ip.octets();
        Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3])
    };
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => Some(low(12)),
        [0x2002, ..] => Some(low(2)),
        [0, 0, 0, 0, 0, 0, high, rest] if (high, rest) > (0, 1) => Some(low(12)),
        _ => None,
    }
}

/// The class of an address. An IPv6 address with an embedded IPv4 address has the class of the IPv4
/// address. If that is public, the IPv6 prefix decides: public for NAT64 and 6to4, reserved for the
/// obsolete IPv4-translated and IPv4-compatible forms.
pub(crate) fn classify(ip: IpAddr) -> AddressClass {
    match unmapped(ip) {
        IpAddr::V4(ip) => classify_v4(ip),
        IpAddr::V6(v6) => match embedded(ip).map(classify_v4) {
            Some(AddressClass::Public) | None => classify_v6(v6),
            Some(class) => class,
        },
    }
}

fn classify_v4(ip: Ipv4Addr) -> AddressClass {
    match ip.octets() {
        [0, ..] => AddressClass::Unspecified,
        [127, ..] => AddressClass::Loopback,
        [169, 254, ..] => AddressClass::LinkLocal,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressClass::Private,
        [100, 64..=127, ..] => AddressClass::Shared,
        [224..=239, ..] => AddressClass::Multicast,
        [255, 255, 255, 255] => AddressClass::Broadcast,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressClass::Documentation,
        [198, 18..=19, ..] => AddressClass::Benchmark,
        // Azure's host service: DNS, health and extensions of virtual machines.
        [168, 63, 129, 16] => AddressClass::CloudPlatform,
        // Protocol assignments, the former relays of 6to4, and future use.
        [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn classify_v6(ip: Ipv6Addr) -> AddressClass {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        // The well-known prefix of NAT64; `classify` has seen the embedded address.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => AddressClass::Public,
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        // Site-local addresses, the predecessors of unique-local ones.
        [0xfec0..=0xfeff, ..] => AddressClass::Private,
        [0xfc00..=0xfdff, ..] => AddressClass::UniqueLocal,
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => AddressClass::Documentation,
        [0x2001, 2, 0, ..] => AddressClass::Benchmark,
        // Protocol assignments, among them Teredo and ORCHID.
        [0x2001, 0..=0x1ff, ..] => AddressClass::Reserved,
        [0x2000..=0x3fff, ..] => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class(ip: &str) -> AddressClass {
        classify(ip.parse().unwrap())
    }

    #[test]
    fn every_class_starts_and_ends_where_its_registry_says() {
        use AddressClass as Class;
        let table = [
            (Class::Unspecified, &["0.0.0.0", "0.255.255.255", "::"][..]),
            (Class::Loopback, &["127.0.0.0", "127.0.0.1", "127.255.255.255", "::1"]),
            (Class::LinkLocal, &["169.254.0.0", "169.254.169.254", "169.254.255.255", "fe80::1", "febf::"]),
            (Class::Private, &["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255"]),
            (Class::Private, &["192.168.0.0", "192.168.255.255", "fec0::1"]),
            (Class::Shared, &["100.64.0.0", "100.100.100.200", "100.127.255.255"]),
            (Class::UniqueLocal, &["fc00::", "fd00:ec2::254", "fdff:ffff::1"]),
            (Class::Multicast, &["224.0.0.0", "239.255.255.255", "ff02::1"]),
            (Class::Broadcast, &["255.255.255.255"]),
            (Class::Documentation, &["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::"]),
            (Class::Benchmark, &["198.18.0.0", "198.19.255.255", "2001:2::1"]),
            (Class::CloudPlatform, &["168.63.129.16"]),
            (Class::Reserved, &["192.0.0.192", "192.88.99.1", "240.0.0.0", "255.255.255.254"]),
            (Class::Reserved, &["2001::1", "2001:20::1", "64:ff9b:1::1", "100::1", "4000::", "5f00::1"]),
            (Class::Public, &["1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0"]),
            (Class::Public, &["100.63.255.255", "100.128.0.0", "169.253.255.255", "169.255.0.0"]),
            (Class::Public, &["192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0"]),
            (Class::Public, &["126.255.255.255", "128.0.0.0", "223.255.255.255", "192.0.1.0", "1.0.0.0"]),
            (Class::Public, &["2606:4700::1111", "2001:200::", "2003::1", "3ffe::1"]),
        ];
        for (expected, addresses) in table {
            for address in addresses {
                assert_eq!(class(address), expected, "{address}");
            }
        }
    }

    #[test]
    fn forms_of_ipv4_addresses_have_their_class() {
        for (form, expected) in [
            ("::ffff:127.0.0.1", AddressClass::Loopback),
            ("::ffff:169.254.169.254", AddressClass::LinkLocal),
            ("::ffff:8.8.8.8", AddressClass::Public),
            ("64:ff9b::10.0.0.1", AddressClass::Private),
            ("64:ff9b::8.8.8.8", AddressClass::Public),
            ("2002:7f00:1::", AddressClass::Loopback),
            ("2002:a9fe:a9fe::1", AddressClass::LinkLocal),
            ("2002:808:808::1", AddressClass::Public),
            ("::ffff:0:192.168.1.1", AddressClass::Private),
            ("::192.168.1.1", AddressClass::Private),
            // Obsolete forms, which nothing should forward.
            ("::ffff:0:8.8.8.8", AddressClass::Reserved),
            ("::8.8.8.8", AddressClass::Reserved),
        ] {
            assert_eq!(class(form), expected, "{form}");
        }
    }

    proptest! {
        #[test]
        fn no_form_of_an_ipv4_address_has_more_access_than_the_address(bits in any::<u32>(), low in any::<u64>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let expected = classify(v4.into());
            let [high, rest] = [(bits >> 16) as u16, bits as u16];
            let forwarded = [
                IpAddr::from(v4.to_ipv6_mapped()),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, rest).into(),
                Ipv6Addr::from_bits(Ipv6Addr::new(0x2002, high, rest, 0, 0, 0, 0, 0).to_bits() | u128::from(low)).into(),
            ];
            for form in forwarded {
                prop_assert_eq!(classify(form), expected, "{}", form);
            }
            let obsolete = [Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, rest), Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, rest)];
            for form in obsolete {
                prop_assert_ne!(classify(form.into()), AddressClass::Public, "{}", form);
            }
        }

        #[test]
        fn only_global_unicast_is_public(bits in any::<u128>()) {
            let ip = Ipv6Addr::from_bits(bits);
            let is_nat64 = ip.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
            if classify(ip.into()) == AddressClass::Public && ip.to_ipv4_mapped().is_none() {
                prop_assert!(is_nat64 || bits >> 125 == 1, "{}", ip);
            }
        }
    }
}
