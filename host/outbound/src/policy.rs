//! The decision about a destination.
//!
//! The first rule that applies decides:
//!
//! 1. Endpoints of the node or its cluster are refused.
//! 2. A `deny` rule refuses.
//! 3. A destination outside of the tenant's `only` is refused.
//! 4. Public addresses are permitted. So are loopback addresses, if the node has no tokens and
//!    listens only on loopback.
//! 5. An `allow` rule permits, except unspecified, multicast and broadcast addresses.
//! 6. All others are refused.

use crate::class::{AddressClass, classify, embedded, unmapped};
use crate::endpoints::NodeEndpoints;
use crate::{OutboundConfig, OutboundRefusal, RefusalReason, Rule};
use std::net::IpAddr;
use weir_types::TenantId;

/// A host and port that a tenant asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub(crate) tenant: &'a TenantId,
    /// The normal name, or the address as text.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
}

/// The rules of a node.
pub(crate) struct OutboundPolicy {
    pub(crate) config: OutboundConfig,
    pub(crate) endpoints: NodeEndpoints,
    /// Whether loopback addresses are open by default.
    pub(crate) is_loopback_open: bool,
}

impl OutboundPolicy {
    /// Refuses a destination that its name alone excludes, so that it is not looked up.
    pub(crate) fn check_name(&self, to: Destination<'_>) -> Result<(), OutboundRefusal> {
        let Destination { tenant, host, port } = to;
        if self.endpoints.names_one(host, port) {
            return Err(to.is_of_the_node());
        }
        let of_tenant = self.config.tenant(tenant);
        for (rules, key) in [(&self.config.deny, "outbound.deny"), (&of_tenant.deny, "deny")] {
            if let Some(rule) = rules.iter().find(|rule| rule.names(host, port)) {
                return Err(to.is_denied(rule, &self.key(tenant, key)));
            }
        }
        match &of_tenant.only {
            Some(only) if !only.iter().any(|rule| rule.is_range() || rule.names(host, port)) => {
                Err(to.is_above_the_ceiling(&self.key(tenant, "only")))
            }
            _ => Ok(()),
        }
    }

    /// Decides about one address of a destination whose name was [checked](Self::check_name).
    pub(crate) fn check_address(&self, to: Destination<'_>, ip: IpAddr) -> Result<(), OutboundRefusal> {
        let Destination { tenant, host, port } = to;
        let ip = unmapped(ip);
        if self.endpoints.contain(ip, port) {
            return Err(to.is_of_the_node());
        }
        let of_tenant = self.config.tenant(tenant);
        // The address that a translator would forward to is denied too.
        let forms = [Some(ip), embedded(ip).map(IpAddr::from)];
        for (rules, key) in [(&self.config.deny, "outbound.deny"), (&of_tenant.deny, "deny")] {
            let mut forms = forms.iter().flatten();
            if let Some(rule) = forms.find_map(|ip| rules.iter().find(|rule| rule.contains(*ip, port))) {
                return Err(to.is_denied(rule, &self.key(tenant, key)));
            }
        }
        let is_in =
            |rules: &[Rule]| rules.iter().any(|rule| rule.names(host, port) || rule.contains(ip, port));
        if of_tenant.only.as_deref().is_some_and(|only| !is_in(only)) {
            return Err(to.is_above_the_ceiling(&self.key(tenant, "only")));
        }
        let class = classify(ip);
        let is_open = match class {
            AddressClass::Public => true,
            AddressClass::Loopback if self.is_loopback_open => true,
            class => class.may_be_allowed() && (is_in(&self.config.allow) || is_in(&of_tenant.allow)),
        };
        if is_open { Ok(()) } else { Err(to.is_closed(class)) }
    }

    /// The path of a setting of the tenant; other paths are complete.
    fn key(&self, tenant: &TenantId, key: &str) -> String {
        if key.contains('.') {
            key.to_owned()
        } else if self.config.tenants.contains_key(tenant) {
            format!("outbound.tenants.{tenant}.{key}")
        } else {
            format!("outbound.tenant_default.{key}")
        }
    }
}

impl Destination<'_> {
    /// As in a rule.
    fn rule(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    fn is_of_the_node(&self) -> OutboundRefusal {
        let text =
            format!("{} is an endpoint of the node or of its cluster; no setting allows it", self.rule());
        OutboundRefusal { reason: RefusalReason::NodeEndpoint, text }
    }

    fn is_denied(&self, rule: &Rule, key: &str) -> OutboundRefusal {
        let text = format!(
            "{} is refused by the rule {:?} in {key} of the node's settings; removing that rule allows it",
            self.rule(),
            rule.to_string()
        );
        OutboundRefusal { reason: RefusalReason::DenyRule, text }
    }

    fn is_above_the_ceiling(&self, key: &str) -> OutboundRefusal {
        let to = self.rule();
        let text = format!(
            "{to} is not among the destinations of tenant {}; adding {to:?} to {key} of the node's settings allows it",
            self.tenant
        );
        OutboundRefusal { reason: RefusalReason::TenantCeiling, text }
    }

    fn is_closed(&self, class: AddressClass) -> OutboundRefusal {
        let to = self.rule();
        let remedy = if class.may_be_allowed() {
            format!("adding {to:?} to outbound.allow of the node's settings allows it")
        } else {
            "no setting allows it".to_owned()
        };
        let text = format!("{to} is refused, because its address is {}; {remedy}", class.as_str());
        OutboundRefusal { reason: RefusalReason::class(class), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreEndpoint;

    fn policy(settings: &str) -> OutboundPolicy {
        let config = toml::from_str(settings).unwrap_or_else(|error| panic!("{settings}: {error}"));
        let endpoints = NodeEndpoints::new(vec![StoreEndpoint::from_url("http://10.0.0.9:2379").unwrap()]);
        endpoints.set_listener("127.0.0.1:9347".parse().unwrap());
        OutboundPolicy { config, endpoints, is_loopback_open: false }
    }

    /// The label of the refusal of a destination with one address; `None` if it is permitted.
    fn decide(
        policy: &OutboundPolicy,
        tenant: &str,
        host: &str,
        port: u16,
        ip: &str,
    ) -> Option<&'static str> {
        let tenant = TenantId::new(tenant).unwrap();
        let to = Destination { tenant: &tenant, host, port };
        let decided = policy.check_name(to).and_then(|()| policy.check_address(to, ip.parse().unwrap()));
        decided.err().map(|refusal| refusal.reason.as_str())
    }

    #[test]
    fn only_public_addresses_are_open_by_default() {
        let policy = policy("");
        for (ip, refused) in [
            ("1.1.1.1", None),
            ("2606:4700::1111", None),
            ("127.0.0.1", Some("loopback")),
            ("10.1.2.3", Some("private")),
            ("169.254.169.254", Some("link-local")),
            ("::ffff:169.254.169.254", Some("link-local")),
            ("64:ff9b::10.0.0.1", Some("private")),
            ("fd00:ec2::254", Some("unique-local")),
            ("0.0.0.0", Some("unspecified")),
        ] {
            assert_eq!(decide(&policy, "default", "name.example", 80, ip), refused, "{ip}");
        }
    }

    #[test]
    fn deny_rules_win_over_allow_rules() {
        let policy = policy(
            r#"allow = ["10.0.0.0/8", "*.internal"]
               deny = ["10.1.0.0/16:80", "secret.internal", "8.8.8.8"]"#,
        );
        let decide = |host, port, ip| decide(&policy, "default", host, port, ip);
        assert_eq!(decide("a", 80, "10.2.0.1"), None);
        assert_eq!(decide("a", 80, "10.1.0.1"), Some("deny-rule"));
        assert_eq!(decide("a", 81, "10.1.0.1"), None);
        assert_eq!(decide("a", 80, "8.8.8.8"), Some("deny-rule"));
        assert_eq!(decide("a", 80, "::ffff:8.8.8.8"), Some("deny-rule"));
        assert_eq!(decide("a", 80, "64:ff9b::8.8.8.8"), Some("deny-rule"));
        assert_eq!(decide("api.internal", 80, "192.168.0.1"), None);
        assert_eq!(decide("secret.internal", 80, "192.168.0.1"), Some("deny-rule"));
        // `allow` rules for IPv4 do not apply to the IPv4 address in a translated IPv6 address.
        assert_eq!(decide("a", 80, "64:ff9b::10.2.0.1"), Some("private"));
    }

    #[test]
    fn some_addresses_are_never_open() {
        let policy = policy(r#"allow = ["0.0.0.0/0", "::/0", "10.0.0.9", "127.0.0.1"]"#);
        for (ip, port, refused) in [
            ("127.0.0.1", 80, None),
            ("127.0.0.1", 9347, Some("node-endpoint")),
            ("::1", 9347, Some("node-endpoint")),
            ("10.0.0.9", 2379, Some("node-endpoint")),
            ("::ffff:10.0.0.9", 2379, Some("node-endpoint")),
            ("10.0.0.9", 80, None),
            ("0.0.0.0", 80, Some("unspecified")),
            ("::", 80, Some("unspecified")),
            ("64:ff9b::0.0.0.0", 80, Some("unspecified")),
            ("224.0.0.1", 80, Some("multicast")),
            ("255.255.255.255", 80, Some("broadcast")),
        ] {
            assert_eq!(decide(&policy, "default", "a", port, ip), refused, "{ip}:{port}");
        }
    }

    #[test]
    fn tenant_rules_apply_to_their_tenant_only() {
        let policy = policy(
            r#"allow = ["10.0.0.0/8"]
               [tenant_default]
               only = ["*.example.com:443", "10.0.0.0/8"]
               [tenants.acme]
               only = ["api.acme.example", "192.168.1.0/24"]
               allow = ["192.168.0.0/16"]
               deny = ["192.168.1.9"]
               [tenants.none]
               only = []
               [tenants.free]"#,
        );
        for (tenant, host, port, ip, refused) in [
            ("other", "a.example.com", 443, "1.1.1.1", None),
            ("other", "a.example.com", 80, "1.1.1.1", Some("tenant-ceiling")),
            ("other", "b.example", 443, "10.1.1.1", None),
            ("other", "b.example", 443, "1.1.1.1", Some("tenant-ceiling")),
            ("other", "a.example.com", 443, "192.168.1.1", Some("private")),
            ("acme", "b.example", 443, "192.168.1.1", None),
            ("acme", "b.example", 443, "192.168.1.9", Some("deny-rule")),
            ("acme", "b.example", 443, "10.1.1.1", Some("tenant-ceiling")),
            ("acme", "api.acme.example", 443, "192.168.2.1", None),
            ("none", "b.example", 443, "1.1.1.1", Some("tenant-ceiling")),
            ("free", "b.example", 443, "1.1.1.1", None),
        ] {
            assert_eq!(decide(&policy, tenant, host, port, ip), refused, "{tenant} {host}:{port} {ip}");
        }
    }

    #[test]
    fn laptop_node_opens_loopback_only() {
        let policy = OutboundPolicy { is_loopback_open: true, ..policy(r#"deny = ["127.0.0.1:5432"]"#) };
        let decide = |port, ip| decide(&policy, "default", "a", port, ip);
        assert_eq!(decide(80, "127.0.0.1"), None);
        assert_eq!(decide(80, "::1"), None);
        assert_eq!(decide(5432, "127.0.0.1"), Some("deny-rule"));
        assert_eq!(decide(9347, "127.0.0.1"), Some("node-endpoint"));
        assert_eq!(decide(80, "10.0.0.1"), Some("private"));
    }

    #[test]
    fn refusals_name_the_rule_and_the_setting() {
        let policy = policy("deny = [\"*.internal\"]\n[tenants.acme]\nonly = [\"10.0.0.0/8\"]");
        let text = |tenant: &str, host: &str, ip: &str| {
            let tenant = TenantId::new(tenant).unwrap();
            let to = Destination { tenant: &tenant, host, port: 80 };
            let decided = policy.check_name(to).and_then(|()| policy.check_address(to, ip.parse().unwrap()));
            decided.unwrap_err().text
        };
        let private = text("other", "db.example", "10.1.2.3");
        assert!(
            private.contains("private") && private.contains("\"db.example:80\" to outbound.allow"),
            "{private}"
        );
        assert!(!private.contains("10.1.2.3"), "the tenant learns an address of the network: {private}");
        let denied = text("other", "db.internal", "1.1.1.1");
        assert!(denied.contains("\"*.internal\" in outbound.deny"), "{denied}");
        let above = text("acme", "db.example", "1.1.1.1");
        assert!(above.contains("outbound.tenants.acme.only"), "{above}");
        assert!(text("other", "::1", "::1").contains("\"[::1]:80\""));
    }
}
