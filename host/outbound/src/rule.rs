//! Rules of `outbound.allow` and `outbound.deny`: hosts, domains and address ranges.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A set of destinations: `host`, `*.domain`, an address or a range of addresses (CIDR), each with
/// an optional port: `api.internal:443`, `10.1.0.0/16:8080`, `[fd00::/8]:443`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Rule {
    text: String,
    target: Target,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// A host name in lower case, without a dot at its end.
    Host(String),
    /// All names below a domain; the text begins with a dot.
    Below(String),
    Net(IpNet),
}

/// Invalid [`Rule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a rule for outbound requests: {why}; write it like api.internal:443, *.example.com or 10.1.0.0/16:8080"
)]
pub struct RuleError {
    text: String,
    why: String,
}

impl Rule {
    /// Whether the rule contains the destination by its name. `host` is a [normal
    /// name](normal_host).
    pub(crate) fn names(&self, host: &str, port: u16) -> bool {
        let is_named = match &self.target {
            Target::Host(name) => name == host,
            Target::Below(domain) => host.len() > domain.len() && host.ends_with(domain.as_str()),
            Target::Net(_) => false,
        };
        is_named && self.has_port(port)
    }

    /// Whether the rule contains the destination by its address.
    pub(crate) fn contains(&self, ip: IpAddr, port: u16) -> bool {
        matches!(&self.target, Target::Net(net) if net.contains(&ip)) && self.has_port(port)
    }

    /// Whether the rule is a range of addresses.
    pub(crate) fn is_range(&self) -> bool {
        matches!(self.target, Target::Net(_))
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|only| only == port)
    }
}

/// A host name in the form that rules compare: in lower case, without a dot at its end.
pub(crate) fn normal_host(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = |why: &str| RuleError { text: text.to_owned(), why: why.to_owned() };
        let parts = split(text).ok_or_else(|| wrong("a bracket is not closed"))?;
        let port = match parts.port {
            None => None,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(wrong("its port is not between 1 and 65535")),
                Ok(port) => Some(port),
            },
        };
        let target = target(parts.target).map_err(|why| wrong(&why))?;
        Ok(Self { text: text.to_owned(), target, port })
    }
}

struct Parts<'a> {
    target: &'a str,
    port: Option<&'a str>,
}

/// Splits the port off. A port after an IPv6 address requires brackets around the address. A port
/// after an IPv6 range may also follow the prefix length.
fn split(text: &str) -> Option<Parts<'_>> {
    if let Some(rest) = text.strip_prefix('[') {
        let end = rest.find(']')?;
        let port = match &rest[end + 1..] {
            "" => None,
            port => Some(port.strip_prefix(':')?),
        };
        return Some(Parts { target: &rest[..end], port });
    }
    let may_have_port = text.find('/').map_or(text, |slash| &text[slash..]);
    let is_address = text.parse::<IpAddr>().is_ok();
    Some(match may_have_port.rfind(':').filter(|_| !is_address) {
        None => Parts { target: text, port: None },
        Some(colon) => {
            let at = text.len() - may_have_port.len() + colon;
            Parts { target: &text[..at], port: Some(&text[at + 1..]) }
        }
    })
}

fn target(text: &str) -> Result<Target, String> {
    if text.contains('/') {
        let net: IpNet = text.parse().map_err(|_| format!("{text:?} is not a range of addresses"))?;
        return range(net);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return range(ip.into());
    }
    let name = normal_host(text.strip_prefix("*.").unwrap_or(text));
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_name) {
        return Err(format!("{text:?} is not a host name"));
    }
    Ok(if text.starts_with("*.") { Target::Below(format!(".{name}")) } else { Target::Host(name) })
}

/// Rejects ranges that could never contain an address.
fn range(net: IpNet) -> Result<Target, String> {
    if net.trunc() != net {
        return Err(format!("the range starts at {}", net.trunc()));
    }
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= 96 && v6.addr().to_ipv4_mapped().is_some() => {
            Err("IPv4-mapped addresses are written as IPv4".to_owned())
        }
        net => Ok(Target::Net(net)),
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;
    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn names_match_whole_labels() {
        assert!(rule("API.internal").names("api.internal", 1));
        assert!(rule("api.internal.").names("api.internal", 1));
        assert!(!rule("api.internal").names("x.api.internal", 1));
        assert!(rule("*.example.com").names("a.b.example.com", 1));
        assert!(!rule("*.example.com").names("example.com", 1));
        assert!(!rule("*.example.com").names("evil-example.com", 1));
        assert!(rule("api:443").names("api", 443) && !rule("api:443").names("api", 80));
        assert!(!rule("10.0.0.0/8").names("10.0.0.1", 80), "addresses are not names");
    }

    #[test]
    fn ranges_match_addresses_and_ports() {
        for (text, inside, outside) in [
            ("10.1.0.0/16:8080", ("10.1.2.3", 8080), ("10.1.2.3", 80)),
            ("10.1.0.0/16", ("10.1.255.255", 1), ("10.2.0.0", 1)),
            ("127.0.0.1", ("127.0.0.1", 9), ("127.0.0.2", 9)),
            ("127.0.0.1:80", ("127.0.0.1", 80), ("127.0.0.1", 81)),
            ("::1", ("::1", 9), ("::2", 9)),
            ("[::1]:80", ("::1", 80), ("::1", 81)),
            ("fd00::/8", ("fd12::1", 9), ("fc00::1", 9)),
            ("fd00::/8:443", ("fd12::1", 443), ("fd12::1", 80)),
            ("[fd00::/8]:443", ("fd12::1", 443), ("fd12::1", 80)),
        ] {
            let contains = |(ip, port): (&str, u16)| rule(text).contains(ip.parse().unwrap(), port);
            assert!(contains(inside) && !contains(outside), "{text}");
            assert_eq!(String::from(rule(text)), text);
        }
    }

    #[test]
    fn invalid_rules_are_rejected_with_the_reason() {
        for (text, why) in [
            ("", "not a host name"),
            ("*", "not a host name"),
            ("*.", "not a host name"),
            ("a*b", "not a host name"),
            ("http://a", "not a range"),
            ("bücher.example", "not a host name"),
            ("a:0", "port"),
            ("a:65536", "port"),
            ("a:http", "port"),
            ("[::1", "bracket"),
            ("[::1]80", "bracket"),
            ("10.0.0.0/33", "not a range"),
            ("10.1.2.3/16", "starts at 10.1.0.0/16"),
            ("::ffff:10.0.0.0/104", "written as IPv4"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
