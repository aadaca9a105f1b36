//! Hosts that a manifest grants.

/// Whether `hosts` names `to`: as `host` (any port), as `host:port`, or by `*`.
#[must_use]
pub fn is_granted(hosts: &[String], to: &http::uri::Authority) -> bool {
    hosts.iter().any(|host| {
        host == "*" || host.eq_ignore_ascii_case(to.host()) || host.eq_ignore_ascii_case(to.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_hosts_are_granted() {
        let granted = |hosts: &[&str], to: &'static str| {
            is_granted(
                &hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>(),
                &http::uri::Authority::from_static(to),
            )
        };
        assert!(!granted(&[], "example.com"));
        assert!(granted(&["example.com"], "Example.com:443"));
        assert!(granted(&["example.com:443"], "example.com:443"));
        assert!(!granted(&["example.com:443"], "example.com:80"));
        assert!(!granted(&["example.com"], "evil-example.com"));
        assert!(!granted(&["example.com"], "user@evil.com"));
        assert!(granted(&["*"], "anything"));
    }
}
