//! Address of an etcd cluster.

use crate::{KeyError, Prefix};
use std::fmt;
use std::str::FromStr;

/// Default port of a server.
const PORT: u16 = 2_379;
/// Default root of the keys.
const ROOT: &str = "weir/";

/// Address of an etcd cluster: `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/ROOT]`, or
/// `etcds://` for TLS with the system's certificates.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// URLs of the servers.
    pub(super) endpoints: Vec<String>,
    /// Prefix of all keys. Ends with a slash.
    pub(super) root: String,
    /// Name and password.
    pub(super) user: Option<(String, String)>,
}

/// Reason why a string is not an [`EtcdAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdAddressError {
    /// The scheme is missing or unknown.
    #[error("the address of an etcd starts with etcd:// or etcds://")]
    Scheme,
    /// A host is missing, or a port is invalid.
    #[error("{0:?} is not a host, or a host and a port")]
    Host(String),
    /// The user has no password.
    #[error("a user is given as USER:PASSWORD@")]
    User,
    /// The root is not a valid key prefix.
    #[error("the root of the keys: {0}")]
    Root(#[from] KeyError),
}

impl EtcdAddress {
    /// URLs of the servers: `http://HOST:PORT` or `https://HOST:PORT`.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
}

impl FromStr for EtcdAddress {
    type Err = EtcdAddressError;

    fn from_str(text: &str) -> Result<Self, EtcdAddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(EtcdAddressError::Scheme)?;
        let scheme = match scheme {
            "etcd" => "http",
            "etcds" => "https",
            _ => return Err(EtcdAddressError::Scheme),
        };
        let (authority, root) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => {
                let (name, password) = user.split_once(':').ok_or(EtcdAddressError::User)?;
                (Some((name.to_owned(), password.to_owned())), hosts)
            }
            None => (None, authority),
        };
        let endpoints = hosts.split(',').map(|host| endpoint(scheme, host)).collect::<Result<_, _>>()?;
        let root = match root.trim_end_matches('/') {
            "" => ROOT.to_owned(),
            root => format!("{root}/"),
        };
        Prefix::new(&root)?;
        Ok(Self { endpoints, root, user })
    }
}

fn endpoint(scheme: &str, host: &str) -> Result<String, EtcdAddressError> {
    let bad = || EtcdAddressError::Host(host.to_owned());
    let authority: http::uri::Authority = host.parse().map_err(|_| bad())?;
    let name = authority.host();
    match (name, authority.port_u16()) {
        ("", _) => Err(bad()),
        (_, Some(port)) => Ok(format!("{scheme}://{name}:{port}")),
        (_, None) if authority.as_str() == name => Ok(format!("{scheme}://{name}:{PORT}")),
        // The text after the colon is not a port.
        (_, None) => Err(bad()),
    }
}

/// Omits the password.
impl fmt::Debug for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdAddress")
            .field("endpoints", &self.endpoints)
            .field("root", &self.root)
            .field("user", &user)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_or_report_the_error() {
        let read = |text: &str| text.parse::<EtcdAddress>();
        let plain = read("etcd://localhost").unwrap();
        assert_eq!(
            (plain.endpoints, plain.root.as_str()),
            (vec!["http://localhost:2379".to_owned()], "weir/")
        );
        let full = read("etcds://weir:a:b@one:1,[::1],two/clusters/blue/").unwrap();
        assert_eq!(full.endpoints, ["https://one:1", "https://[::1]:2379", "https://two:2379"]);
        assert_eq!(full.root, "clusters/blue/");
        assert!(!format!("{full:?}").contains("a:b"), "the password is shown");
        assert_eq!(full.user, Some(("weir".to_owned(), "a:b".to_owned())));
        assert_eq!(read("localhost:2379"), Err(EtcdAddressError::Scheme));
        assert_eq!(read("redis://localhost"), Err(EtcdAddressError::Scheme));
        assert_eq!(read("etcd://weir@one"), Err(EtcdAddressError::User));
        for bad in ["etcd://", "etcd://one,,two", "etcd://one:x", "etcd://one:70000"] {
            assert!(matches!(read(bad), Err(EtcdAddressError::Host(_))), "{bad}: {:?}", read(bad));
        }
        assert!(matches!(read("etcd://one//a"), Err(EtcdAddressError::Root(_))));
    }
}
