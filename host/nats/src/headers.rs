//! Headers of a message.

use crate::printable;
use std::fmt::Write as _;

/// First line of a block of headers.
const VERSION: &str = "NATS/1.0";

/// Headers that are kept, at most.
const VALUES_MAX: usize = 64;

/// Headers of a message, and the status of a message of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageHeaders {
    /// Status, such as 404 for "no messages".
    pub status: Option<u16>,
    /// Description of the status.
    pub description: String,
    /// Content type and attributes of CloudEvents (`ce-*`), in their order.
    pub values: Vec<(String, String)>,
}

impl MessageHeaders {
    /// Reads a block of headers. Skips other headers, and lines that are no headers.
    #[must_use]
    pub fn parse(block: &[u8]) -> Self {
        let text = String::from_utf8_lossy(block);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().strip_prefix(VERSION).unwrap_or_default().trim();
        let (status, description) = first.split_once(' ').unwrap_or((first, ""));
        let values = lines.filter_map(|line| line.split_once(':')).filter(|(name, _)| is_kept(name));
        Self {
            status: status.parse().ok(),
            description: description.trim().to_owned(),
            values: values
                .take(VALUES_MAX)
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
        }
    }

    /// The first value of a header, by its name in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Status and description.
    pub(crate) fn status_text(&self) -> String {
        let mut text = printable(&self.description);
        if let Some(status) = self.status {
            let _ = write!(text, " ({status})");
        }
        text.trim_start().to_owned()
    }
}

fn is_kept(name: &str) -> bool {
    let starts_with = |start: &str| name.get(..start.len()).is_some_and(|s| s.eq_ignore_ascii_case(start));
    name.eq_ignore_ascii_case("content-type") || starts_with("ce-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_values_are_read() {
        let status =
            MessageHeaders::parse(b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 3\r\n\r\n");
        assert_eq!((status.status, status.status_text().as_str()), (Some(409), "Consumer Deleted (409)"));
        assert_eq!(status.get("nats-pending-messages"), None, "nothing needs it");
        let plain = MessageHeaders::parse(
            b"NATS/1.0\r\nContent-Type: text/plain\r\nCE-a: 1\r\nce-A: 2\r\n\xc3\xa4\xc3\xb6: 3\r\n\r\n",
        );
        assert_eq!(
            (plain.status, plain.get("content-type"), plain.get("ce-a")),
            (None, Some("text/plain"), Some("1"))
        );
        assert_eq!(MessageHeaders::parse(b""), MessageHeaders::default());
        assert_eq!(MessageHeaders::parse(b"\xff\r\nno header\r\n"), MessageHeaders::default());
    }
}
