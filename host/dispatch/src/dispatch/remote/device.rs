//! Headers that report the device of a direct model inference.

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_call::headers::{DEVICE, FALLBACK};
use weir_control::models::RanOn;

/// Length limit of a reported reason.
const REASON_LEN_MAX: usize = 300;

/// Writes the device to the headers.
pub fn write_device(RanOn { device, instead }: &RanOn, headers: &mut HeaderMap) {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { ' ' };
    let value = |text: &str| {
        let text: String = text.chars().take(REASON_LEN_MAX).map(plain).collect();
        HeaderValue::from_str(&text).ok()
    };
    headers.extend(value(device).map(|device| (DEVICE, device)));
    headers.extend(instead.as_deref().and_then(value).map(|why| (FALLBACK, why)));
}

/// Reads the device that another node reported.
pub(super) fn read_device(headers: &HeaderMap) -> Option<RanOn> {
    let text = |name: &HeaderName| Some(headers.get(name)?.to_str().ok()?.into());
    Some(RanOn { device: text(&DEVICE)?, instead: text(&FALLBACK) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_headers_round_trip_on_one_line() {
        let mut headers = HeaderMap::new();
        assert_eq!(read_device(&headers), None);
        let mut ran_on = RanOn { device: "cpu".into(), instead: None };
        write_device(&ran_on, &mut headers);
        assert_eq!(read_device(&headers), Some(ran_on.clone()));
        ran_on.instead = Some("no\nä".repeat(1_000).into());
        write_device(&ran_on, &mut headers);
        let heard = read_device(&headers).unwrap().instead.unwrap();
        assert!(heard.starts_with("no  no") && heard.len() == REASON_LEN_MAX, "{heard}");
    }
}
