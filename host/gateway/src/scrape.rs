//! The text format of `/metrics`, by the request's `Accept` header.

use http::HeaderMap;
use http::header::ACCEPT;
use weir_telemetry::TextFormat;

const OPENMETRICS: &str = "application/openmetrics-text";
const PLAIN: &str = "text/plain";

/// The value of `Content-Type` for a format.
pub(super) fn content_type(format: TextFormat) -> &'static str {
    match format {
        TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
    }
}

/// OpenMetrics for clients that ask for it and do not prefer plain text; else Prometheus' format,
/// which every client reads.
pub(super) fn format(headers: &HeaderMap) -> TextFormat {
    let given = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut openmetrics = 0.0;
    let mut plain = 0.0;
    for range in given.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
        if media_type.eq_ignore_ascii_case(OPENMETRICS) {
            openmetrics = quality.max(openmetrics);
        } else if media_type.eq_ignore_ascii_case(PLAIN) {
            plain = quality.max(plain);
        }
    }
    if openmetrics > 0.0 && openmetrics >= plain { TextFormat::OpenMetrics } else { TextFormat::Prometheus }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn openmetrics_is_for_clients_that_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,\
                          text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (&[prometheus][..], TextFormat::OpenMetrics),
            (&["text/plain;q=0.5", "application/OpenMetrics-Text"], TextFormat::OpenMetrics),
            (&["application/openmetrics-text;q=0.3, text/plain"], TextFormat::Prometheus),
            (&["application/openmetrics-text;q=0"], TextFormat::Prometheus),
            (&["*/*"], TextFormat::Prometheus),
            (&["text/html;q=x, ;;,"], TextFormat::Prometheus),
            (&[], TextFormat::Prometheus),
        ] {
            let headers = accept.iter().map(|value| (ACCEPT, HeaderValue::from_str(value).unwrap()));
            assert_eq!(format(&headers.collect()), expected, "{accept:?}");
        }
    }
}
