//! What a request says about being run later: `Prefer: respond-async` (RFC 7240), and what may go with it.

use super::error::ApiError;
use super::headers::{CALLBACK, IDEMPOTENCY_KEY, PREFER};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use weir_types::ErrorCode;
use weir_types::api::CALLBACK_HEADER;

/// The longest idempotency key, in characters.
const KEY_LEN_MAX: usize = 255;

/// What a client that does not wait for its answer has said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    /// The client's own name for the request.
    pub(super) key: Option<String>,
    /// Where the result is to go.
    pub(super) callback: Option<String>,
    /// How long the client does wait at first.
    pub(super) wait: Option<Duration>,
}

impl Wishes {
    /// Take what is for the node out of `headers`, where the request is to be run later. The rest is the function's.
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

/// The one value of a header, which is taken out.
fn text(headers: &mut HeaderMap, name: &HeaderName) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.to_str().map(str::to_owned));
    if values.next().is_some() {
        return Err(invalid(format!("{name} is there more than once")));
    }
    headers.remove(name);
    first.transpose().map_err(|_| invalid(format!("{name} has characters that are not ASCII")))
}

/// The preferences that one header lists. None of ours has a comma in it.
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

/// Whether something stands behind it, as in `respond-async=false`. Nothing in quotes is nothing, too.
fn has_value(preference: &str) -> bool {
    let value = preference.split(';').next().and_then(|first| first.split_once('='));
    value.is_some_and(|(_, value)| !matches!(value.trim(), "" | "\"\""))
}

/// The number of `wait=10`.
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
    fn a_preference_is_found_wherever_it_is_and_others_are_left_to_the_function() {
        for prefer in
            ["respond-async", "Respond-Async", "respond-async=\"\"", "return=minimal, respond-async ; x=y"]
        {
            let mut given =
                headers(&[("prefer", prefer), ("idempotency-key", "k"), ("weir-callback", "http://h/")]);
            let wishes = Wishes::take(&mut given).unwrap().unwrap();
            assert_eq!(
                (wishes.key.as_deref(), wishes.callback.as_deref(), wishes.wait),
                (Some("k"), Some("http://h/"), None)
            );
            let left: Vec<_> = given.get_all(PREFER).iter().collect();
            assert_eq!(left.len(), usize::from(prefer.contains("minimal")), "{left:?}");
            assert_eq!(given.len(), left.len());
        }
        let mut several = HeaderMap::new();
        several.append(PREFER, HeaderValue::from_static("wait=\"7\""));
        several.append(PREFER, HeaderValue::from_static("respond-async"));
        assert_eq!(Wishes::take(&mut several).unwrap().unwrap().wait, Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_request_without_it_is_the_functions_own() {
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
            assert_eq!(Wishes::take(&mut given).unwrap(), None, "{prefer}");
            assert_eq!(given, before);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let long: &'static str = Box::leak("k".repeat(256).into_boxed_str());
        for bad in [
            &[("prefer", "respond-async, wait=soon")] as &[_],
            &[("prefer", "respond-async, wait")],
            &[("prefer", "respond-async"), ("idempotency-key", "")],
            &[("prefer", "respond-async"), ("idempotency-key", long)],
            &[("weir-callback", "http://h/")],
        ] {
            assert!(Wishes::take(&mut headers(bad)).is_err(), "{bad:?}");
        }
        let mut twice = headers(&[("prefer", "respond-async"), ("idempotency-key", "a")]);
        twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("b"));
        assert!(Wishes::take(&mut twice).is_err());
    }
}
