//! Options of asynchronous requests: `Prefer: respond-async` (RFC 7240), and the headers that go
//! with it.

use super::error::ApiError;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use weir_call::headers::{CALLBACK, IDEMPOTENCY_KEY, PREFER};
use weir_types::ErrorCode;
use weir_types::api::CALLBACK_HEADER;

/// Length limit of an idempotency key, in characters.
const KEY_LEN_MAX: usize = 255;

/// Options of an asynchronous request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PreferHeader {
    /// Idempotency key.
    pub(super) key: Option<String>,
    /// Callback address for the result.
    pub(super) callback: Option<String>,
    /// Time that the client waits for the result before it gets a response.
    pub(super) wait: Option<Duration>,
}

impl PreferHeader {
    /// Removes the options of an asynchronous request from `headers`, and returns them; none for a
    /// synchronous request. The remaining headers belong to the function.
    pub(super) fn take(headers: &mut HeaderMap) -> Result<Option<Self>, ApiError> {
        let preferences: Vec<_> = headers.get_all(PREFER).iter().flat_map(preferences).collect();
        let is_own = |preference: &str, own: &str| name(preference).eq_ignore_ascii_case(own);
        if !preferences.iter().any(|preference| is_own(preference, "respond-async") && !has_value(preference))
        {
            return match headers.contains_key(CALLBACK) {
                true => Err(invalid(format!(
                    "{CALLBACK_HEADER} goes with `prefer: respond-async`, which is missing"
                ))),
                false => Ok(None),
            };
        }
        let wait = preferences.iter().find(|preference| is_own(preference, "wait"));
        let wait = wait.map(|wait| seconds(wait)).transpose()?;
        headers.remove(PREFER);
        let others =
            preferences.iter().filter(|other| !is_own(other, "respond-async") && !is_own(other, "wait"));
        for other in others {
            headers.extend(HeaderValue::from_str(other).ok().map(|other| (PREFER, other)));
        }
        let key = text(headers, &IDEMPOTENCY_KEY)?;
        if let Some(key) = &key
            && (key.is_empty() || key.len() > KEY_LEN_MAX)
        {
            return Err(invalid(format!(
                "{IDEMPOTENCY_KEY} has from 1 to {KEY_LEN_MAX} characters, not {}",
                key.len()
            )));
        }
        Ok(Some(Self { key, callback: text(headers, &CALLBACK)?, wait }))
    }
}

/// Removes a header, and returns its only value.
fn text(headers: &mut HeaderMap, name: &HeaderName) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.to_str().map(str::to_owned));
    if values.next().is_some() {
        return Err(invalid(format!("{name} is there more than once")));
    }
    headers.remove(name);
    first.transpose().map_err(|_| invalid(format!("{name} has characters that are not ASCII")))
}

/// Returns the preferences that one header lists. Weir's own preferences contain no commas.
fn preferences(value: &HeaderValue) -> Vec<String> {
    let text = value.to_str().unwrap_or_default();
    text.split(',')
        .map(|preference| preference.trim().to_owned())
        .filter(|preference| !preference.is_empty())
        .collect()
}

fn name(preference: &str) -> &str {
    preference.split(['=', ';']).next().unwrap_or_default().trim()
}

/// Whether a preference has a value, as in `respond-async=false`. An empty quoted string counts as
/// no value.
fn has_value(preference: &str) -> bool {
    let value = preference.split(';').next().and_then(|first| first.split_once('='));
    value.is_some_and(|(_, value)| !matches!(value.trim(), "" | "\"\""))
}

/// Returns the seconds in `wait=10`.
fn seconds(preference: &str) -> Result<Duration, ApiError> {
    let value = preference.split(';').next().and_then(|first| first.split_once('='));
    let number = value.and_then(|(_, number)| number.trim().trim_matches('"').parse().ok());
    number
        .map(Duration::from_secs)
        .ok_or_else(|| invalid(format!("`prefer: {preference}` is not wait= and a number of seconds")))
}

fn invalid(text: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        given.iter().map(pair).collect()
    }

    #[test]
    fn respond_async_is_extracted_and_other_preferences_remain() {
        for prefer in
            ["respond-async", "Respond-Async", "respond-async=\"\"", "return=minimal, respond-async ; x=y"]
        {
            let mut given =
                headers(&[("prefer", prefer), ("idempotency-key", "k"), ("weir-callback", "http://h/")]);
            let options = PreferHeader::take(&mut given).unwrap().unwrap();
            assert_eq!(
                (options.key.as_deref(), options.callback.as_deref(), options.wait),
                (Some("k"), Some("http://h/"), None)
            );
            let left: Vec<_> = given.get_all(PREFER).iter().collect();
            assert_eq!(left.len(), usize::from(prefer.contains("minimal")), "{left:?}");
            assert_eq!(given.len(), left.len());
        }
        let mut several = HeaderMap::new();
        several.append(PREFER, HeaderValue::from_static("wait=\"7\""));
        several.append(PREFER, HeaderValue::from_static("respond-async"));
        assert_eq!(PreferHeader::take(&mut several).unwrap().unwrap().wait, Some(Duration::from_secs(7)));
    }

    #[test]
    fn request_without_respond_async_is_unchanged() {
        for prefer in [
            "",
            "return=minimal",
            "wait=10",
            "respond-asynchronously",
            "x=respond-async",
            "respond-async=false",
        ] {
            let mut given = headers(&[("prefer", prefer), ("idempotency-key", "k")]);
            let before = given.clone();
            assert_eq!(PreferHeader::take(&mut given).unwrap(), None, "{prefer}");
            assert_eq!(given, before);
        }
    }

    #[test]
    fn invalid_preferences_are_rejected() {
        let long: &'static str = Box::leak("k".repeat(256).into_boxed_str());
        for bad in [
            &[("prefer", "respond-async, wait=soon")] as &[_],
            &[("prefer", "respond-async, wait")],
            &[("prefer", "respond-async"), ("idempotency-key", "")],
            &[("prefer", "respond-async"), ("idempotency-key", long)],
            &[("weir-callback", "http://h/")],
        ] {
            assert!(PreferHeader::take(&mut headers(bad)).is_err(), "{bad:?}");
        }
        let mut twice = headers(&[("prefer", "respond-async"), ("idempotency-key", "a")]);
        twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("b"));
        assert!(PreferHeader::take(&mut twice).is_err());
    }
}
