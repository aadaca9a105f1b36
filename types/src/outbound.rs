//! Hosts that a manifest grants for outbound requests.

use std::net::Ipv6Addr;

/// Text that is not a host of a manifest's `outbound_hosts`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a host: {why}; write it as HOST or HOST:PORT, or as * for all hosts")]
pub struct OutboundHostError {
    text: String,
    why: &'static str,
}

/// Checks a host of `outbound_hosts`: `host`, `host:port`, or `*` alone. IPv6 addresses are in
/// brackets. Other texts would grant nothing.
pub fn check_outbound_host(text: &str) -> Result<(), OutboundHostError> {
    let wrong = |why| Err(OutboundHostError { text: text.chars().take(80).collect(), why });
    if text == "*" {
        return Ok(());
    }
    if text.contains("://") {
        return wrong("it is a URL");
    }
    if text.contains('/') {
        return wrong("it has a path");
    }
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let after_host = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) if address.parse::<Ipv6Addr>().is_ok() => rest,
        Some(_) => return wrong("the brackets contain no IPv6 address"),
        None if text.matches(':').count() > 1 => return wrong("an IPv6 address is written in brackets"),
        None => {
            let host = text.split(':').next().unwrap_or_default();
            if host.is_empty() || !host.chars().all(is_of_name) {
                return wrong("its name has other characters than letters, digits, '-', '_' and '.'");
            }
            &text[host.len()..]
        }
    };
    if after_host.is_empty() {
        return Ok(());
    }
    let port = after_host.strip_prefix(':').and_then(|port| port.parse::<u16>().ok());
    if port.is_none_or(|port| port == 0) {
        return wrong("its port is not between 1 and 65535");
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses_with_an_optional_port() {
        for text in
            ["*", "example.com", "API.example.com:443", "127.0.0.1:80", "[::1]", "[fd00::1]:8080", "a_b"]
        {
            assert_eq!(check_outbound_host(text), Ok(()), "{text}");
        }
        for (text, why) in [
            ("http://127.0.0.1:9798", "a URL"),
            ("https://example.com/path", "a URL"),
            ("example.com/path", "a path"),
            ("127.0.0.1:*", "port"),
            ("127.0.0.1:99999", "port"),
            ("example.com:0", "port"),
            ("example.com:", "port"),
            ("[::1]x", "port"),
            ("::1", "in brackets"),
            ("[example.com]", "no IPv6 address"),
            ("*.example.com", "other characters"),
            ("user@example.com", "other characters"),
            ("", "other characters"),
        ] {
            let error = check_outbound_host(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("HOST or HOST:PORT"), "{text}: {error}");
        }
    }
}
