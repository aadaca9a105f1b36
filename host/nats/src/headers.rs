//! Headers of a message.

use std::fmt::Write as _;

/// First line of a block of headers.
const VERSION: &str = "NATS/1.0";

/// Headers of a message, and the status of a message of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageHeaders {
    /// Status, such as 404 for "no messages".
    pub status: Option<u16>,
    /// Description of the status.
    pub description: String,
    /// Names and values, in their order.
    pub values: Vec<(String, String)>,
}

impl MessageHeaders {
    /// Reads a block of headers. Skips lines that are no headers.
    #[must_use]
    pub fn parse(block: &[u8]) -> Self {
        let text = String::from_utf8_lossy(block);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().strip_prefix(VERSION).unwrap_or_default().trim();
        let (status, description) = first.split_once(' ').unwrap_or((first, ""));
        let values = lines.filter_map(|line| line.split_once(':'));
        Self {
            status: status.parse().ok(),
            description: description.trim().to_owned(),
            values: values.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect(),
        }
    }

    /// The first value of a header. Names have any case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Status and description.
    pub(crate) fn status_text(&self) -> String {
        let mut text = self.description.clone();
        if let Some(status) = self.status {
            let _ = write!(text, " ({status})");
        }
        text.trim_start().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_values_are_read() {
        let status =
            MessageHeaders::parse(b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 3\r\n\r\n");
        assert_eq!((status.status, status.status_text().as_str()), (Some(409), "Consumer Deleted (409)"));
        assert_eq!(status.get("nats-pending-messages"), Some("3"));
        let plain = MessageHeaders::parse(b"NATS/1.0\r\nContent-Type: text/plain\r\nA: 1\r\nA: 2\r\n\r\n");
        assert_eq!(
            (plain.status, plain.get("content-type"), plain.get("a")),
            (None, Some("text/plain"), Some("1"))
        );
        assert_eq!(MessageHeaders::parse(b""), MessageHeaders::default());
        assert_eq!(MessageHeaders::parse(b"\xff\r\nno header\r\n"), MessageHeaders::default());
    }
}
