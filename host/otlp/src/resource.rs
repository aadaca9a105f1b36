//! The node, as the collector sees it: attributes of all of its spans and metrics.

use crate::wire::Message;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Name and version of the source of all spans and metrics.
const SCOPE: &str = "weir";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest name and text of an attribute, in bytes.
const KEY_BYTES_MAX: usize = 255;
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 10;

/// Identity of a node.
#[derive(Debug, Clone)]
pub struct NodeResource {
    /// Number of the node in its cluster.
    pub node: u32,
    /// Listen address of a node outside a cluster.
    pub address: Option<SocketAddr>,
}

/// Attributes of the node, encoded as the field `resource`.
#[derive(Debug, Clone)]
pub(crate) struct Resource(Vec<u8>);

impl Resource {
    /// Encodes the attributes of `node`. Those in `set` take precedence.
    pub(crate) fn new(node: &NodeResource, set: &BTreeMap<String, String>) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim();
        let number = node.node.to_string();
        let instance = match node.address {
            Some(address) => format!("{host}:{}", address.port()),
            None => number.clone(),
        };
        let mut all = BTreeMap::from([
            ("service.name", "weir"),
            ("service.version", VERSION),
            ("service.instance.id", &*instance),
        ]);
        if !host.is_empty() {
            all.insert("host.name", host);
        }
        all.insert("weir.node", &number);
        all.extend(set.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let mut encoded = Vec::new();
        Message(&mut encoded).message(1, |resource| {
            for (key, value) in all {
                text_attribute(resource, 1, key, value);
            }
        });
        Self(encoded)
    }

    /// Encodes a request with spans or metrics of the node: `items` are fields with number 2 of the
    /// only scope.
    pub(crate) fn request(&self, items: &[&[u8]]) -> Vec<u8> {
        let bytes: usize = items.iter().map(|item| item.len()).sum();
        let mut request = Vec::with_capacity(bytes + self.0.len() + 64);
        Message(&mut request).message(1, |of_resource| {
            of_resource.0.extend_from_slice(&self.0);
            of_resource.message(2, |of_scope| {
                of_scope.message(1, |scope| {
                    scope.string(1, SCOPE);
                    scope.string(2, VERSION);
                });
                for item in items {
                    of_scope.0.extend_from_slice(item);
                }
            });
        });
        request
    }
}

/// Writes an attribute with a text.
pub(crate) fn text_attribute(message: &mut Message<'_>, field: u32, key: &str, text: &str) {
    attribute(message, field, key, |value| value.string(1, cut(text, TEXT_BYTES_MAX)));
}

/// Writes an attribute, whose `value` has one field.
pub(crate) fn attribute(
    message: &mut Message<'_>,
    field: u32,
    key: &str,
    value: impl FnOnce(&mut Message<'_>),
) {
    message.message(field, |pair| {
        pair.string(1, cut(key, KEY_BYTES_MAX));
        pair.message(2, value);
    });
}

/// The start of a text, up to `bytes_max`.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
