//! Callbacks: posts the result to the address in the request. The host of the address must be
//! allowed. Callbacks use the same connector as requests of guests.

use super::index::PendingStep;
use super::message::{Message, RequestHead, ResponseHead};
use super::record::{NextStep, encode};
use super::retry::backoff_ms;
use super::store::{Claim, Seen};
use super::work::{ShutdownSignals, Worked};
use super::{AsyncError, Invocations, now_ms};
use crate::RequestRunner;
use axum::body::Body;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::BodyExt;
use std::time::Duration;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};
use weir_outbound::is_granted;
use weir_types::ErrorCode;
use weir_types::api::{CALLBACK_ID_HEADER, CALLBACK_RESPONSE_HEADER, CALLBACK_STATUS_HEADER, CallbackStatus};

/// Length limit of a callback address.
const ADDRESS_BYTES_MAX: usize = 2_048;

/// Checks a callback address: HTTP or HTTPS, to a host in `hosts`.
pub fn check_callback(address: &str, hosts: &[String]) -> Result<(), AsyncError> {
    let wrong = |why: &str| {
        let text = format!("weir-callback cannot be used: {why}");
        AsyncError::refused(ErrorCode::InvalidRequest, text)
    };
    if address.len() > ADDRESS_BYTES_MAX {
        return Err(wrong(&format!("it is longer than {ADDRESS_BYTES_MAX} bytes")));
    }
    let uri: Uri = address.parse().map_err(|error| wrong(&format!("{error}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("it starts with neither http:// nor https://"));
    }
    let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
        return Err(wrong("it names no host"));
    };
    if authority.as_str().contains('@') {
        return Err(wrong("it has a user name or password in it, which would not be sent"));
    }
    if !is_granted(hosts, authority) {
        let text = format!(
            "the result may not be sent to {authority}: add it to outbound_hosts in the function's manifest, or for models to async.callback_hosts of the node"
        );
        return Err(AsyncError::refused(ErrorCode::NotGranted, text));
    }
    Ok(())
}

impl Invocations {
    /// Tries to deliver a result.
    pub(super) async fn call_back(
        &self,
        gateway: &impl RequestRunner,
        work: &PendingStep,
        stop: &ShutdownSignals,
    ) -> Result<Worked, AsyncError> {
        let Some(seen) = self.read(&work.tenant, work.id).await? else { return Ok(Worked::Stale) };
        if seen.record.step() != NextStep::CallBack {
            return Ok(Worked::Stale);
        }
        let time_max = Duration::from_millis(self.config.callback_timeout_ms);
        let sending = tokio::time::timeout(time_max, self.send(gateway, &seen));
        let sent = tokio::select! {
            biased;
            () = work.cancelled.cancelled() => return Ok(Worked::Stale),
            sent = sending => sent.unwrap_or_else(|_| Err(format!("no answer within {} ms", time_max.as_millis()))),
            // This does not count as an attempt, and another node may make it.
            () = stop.give_up.cancelled() => return self.write(&seen, &seen.record, Claim::Drop).await.map(Worked::from),
        };
        self.note(&seen, sent).await
    }

    /// Records the outcome of a callback attempt.
    async fn note(&self, seen: &Seen, sent: Result<(), String>) -> Result<Worked, AsyncError> {
        let mut record = seen.record.clone();
        let Some(callback) = &mut record.callback else { return Ok(Worked::Stale) };
        callback.attempts += 1;
        let attempts = callback.attempts;
        callback.error = None;
        match sent {
            Ok(()) => callback.status = CallbackStatus::Delivered,
            Err(why) => {
                if attempts >= self.config.callback_attempts_max {
                    callback.status = CallbackStatus::Failed;
                    tracing::warn!(id = %seen.id, why, "callback failed in its last attempt");
                }
                record.due_at_ms = now_ms() + backoff_ms(attempts, &self.config, rand::random());
                record.fail_callback(&why);
            }
        }
        let status = record.callback.as_ref().map(|callback| callback.status);
        let written = self.write(seen, &record, record.step().claim_after()).await?;
        if written.is_some()
            && let Some(status) = status.filter(|status| *status != CallbackStatus::Pending)
        {
            self.metrics.asynchronous.called_back(&seen.tenant, status);
        }
        Ok(written.into())
    }

    /// Posts the result. A success status completes the delivery; the rest of the response is not
    /// read.
    async fn send(&self, gateway: &impl RequestRunner, seen: &Seen) -> Result<(), String> {
        let told = |error: AsyncError| error.to_string();
        let path = self.blobs.fetch(seen.record.request.digest).await.map_err(|error| error.to_string())?;
        let address = Message::<RequestHead>::open(&path).await.map_err(told)?.head.callback;
        let address = address.ok_or("the request has lost its callback")?;
        // The host may have lost its grant since the request was accepted.
        let hosts = gateway.callback_hosts(&seen.tenant, seen.record.kind, &seen.record.name);
        check_callback(&address, &hosts).map_err(told)?;
        let uri: Uri = address.parse().map_err(|error| format!("{error}"))?;
        let (headers, body) = self.posted(seen).await.map_err(told)?;
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers;
        let host = uri.authority().and_then(|to| HeaderValue::from_str(to.as_str()).ok());
        request.headers_mut().extend(host.map(|host| (HOST, host)));
        *request.uri_mut() = uri;
        let time_max = Some(Duration::from_millis(self.config.callback_timeout_ms));
        let options = RequestOptions {
            connect_timeout: time_max,
            first_byte_timeout: time_max,
            between_bytes_timeout: time_max,
        };
        let sent = self.connector.send(&seen.tenant, &hosts, request, options).await;
        let sent = sent.map_err(|error| error.to_string())?;
        // Redirects are not followed: they could lead to hosts without a grant.
        match sent.response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it was answered with {status}")),
        }
    }

    /// Builds the posted message: the body of the response, or the invocation as JSON if there is
    /// no response.
    async fn posted(&self, seen: &Seen) -> Result<(HeaderMap, WasiBody), AsyncError> {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
        let id = HeaderValue::from_str(&seen.id.to_string()).ok();
        headers.extend(id.map(|id| (HeaderName::from_static(CALLBACK_ID_HEADER), id)));
        headers.insert(CALLBACK_STATUS_HEADER, HeaderValue::from_static(seen.record.status.as_str()));
        let Some(response) = seen.record.response else {
            let shown = seen.record.describe(&seen.tenant, seen.id, self.config.retention_ms);
            let shown = encode(&shown);
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CONTENT_LENGTH, shown.len().into());
            return Ok((headers, wasi(Body::from(shown))));
        };
        let path = self.blobs.fetch(response.part.digest).await?;
        let (head, body) = Message::<ResponseHead>::open(&path).await?.response().into_parts();
        headers.insert(CALLBACK_RESPONSE_HEADER, head.status.as_u16().into());
        for name in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH] {
            headers.extend(head.headers.get(&name).map(|value| (name, value.clone())));
        }
        Ok((headers, wasi(body)))
    }
}

fn wasi(body: Body) -> WasiBody {
    body.map_err(|error| Error::InternalError(Some(error.to_string()))).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_reach_granted_hosts_only() {
        let hosts = ["hooks.example:8080".to_owned(), "other.example".to_owned()];
        let check = |address: &str| match check_callback(address, &hosts) {
            Ok(()) => None,
            Err(AsyncError::Refused { code, .. }) => Some(code),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(check("http://hooks.example:8080/a?b=c"), None);
        assert_eq!(check("https://OTHER.example/"), None);
        for forbidden in
            ["http://hooks.example/", "http://127.0.0.1/", "http://other.example.evil/", "http://[::1]/"]
        {
            assert_eq!(check(forbidden), Some(ErrorCode::NotGranted), "{forbidden}");
        }
        let long = format!("http://other.example/{}", "x".repeat(ADDRESS_BYTES_MAX));
        for wrong in [
            "",
            "/path",
            "other.example",
            "ftp://other.example/",
            "http://a@other.example/",
            "http:///x",
            "http://a b/",
            &long,
        ] {
            assert_eq!(check(wrong), Some(ErrorCode::InvalidRequest), "{wrong}");
        }
    }
}
