//! Outbound HTTP requests of guests, limited to the hosts that the manifest names.

use std::sync::Arc;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};
use weir_types::FunctionManifest;

use super::output::CurrentSink;

type Sent = wasmtime_wasi_http::Result<(http::Response<WasiBody>, Io)>;
type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Allows requests to granted hosts and denies all others.
pub(super) struct Outbound {
    manifest: Arc<FunctionManifest>,
    sink: CurrentSink,
}

impl Outbound {
    pub(super) fn new(manifest: Arc<FunctionManifest>, sink: CurrentSink) -> Self {
        Self { manifest, sink }
    }
}

impl WasiHttpHooks for Outbound {
    /// Short responses are buffered in full, so that a guest can end after its last write.
    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        4
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Io,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let granted =
            request.uri().authority().is_some_and(|to| is_granted(&self.manifest.outbound_hosts, to));
        if !granted {
            let to = request.uri().authority().map_or("an unnamed host", http::uri::Authority::as_str);
            self.sink.refused(&format!("HTTP request to {to}; add it to outbound_hosts in the manifest"));
            return Box::new(async { Err(Error::HttpRequestDenied) });
        }
        Box::new(async move {
            let (response, io) = wasmtime_wasi_http::default_send_request(request, options).await?;
            let response = response.map(http_body_util::BodyExt::boxed_unsync);
            Ok((response, Box::new(io) as Io))
        })
    }
}

/// Whether `hosts` names `to`: as `host` (any port), as `host:port`, or by `*`.
pub fn is_granted(hosts: &[String], to: &http::uri::Authority) -> bool {
    hosts.iter().any(|host| {
        host == "*" || host.eq_ignore_ascii_case(to.host()) || host.eq_ignore_ascii_case(to.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_hosts_are_reached() {
        let granted = |hosts: &[&str], to: &'static str| {
            is_granted(
                &hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>(),
                &http::uri::Authority::from_static(to),
            )
        };
        assert!(!granted(&[], "example.com"));
        assert!(granted(&["example.com"], "Example.com:443"));
        assert!(granted(&["example.com:443"], "example.com:443"));
        assert!(!granted(&["example.com:443"], "example.com:80"));
        assert!(!granted(&["example.com"], "evil-example.com"));
        assert!(!granted(&["example.com"], "user@evil.com"));
        assert!(granted(&["*"], "anything"));
    }
}
