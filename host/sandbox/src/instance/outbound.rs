//! Outbound HTTP requests of guests, to the hosts that the manifest names and the node permits.

use super::output::CurrentSink;
use std::sync::Arc;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};
use weir_outbound::{SendError, TenantConnector};
use weir_types::FunctionManifest;

type Sent = wasmtime_wasi_http::Result<(http::Response<WasiBody>, Io)>;
type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Sends the requests of one function, and logs those that are refused.
pub(super) struct Outbound {
    manifest: Arc<FunctionManifest>,
    connector: TenantConnector,
    sink: CurrentSink,
}

impl Outbound {
    pub(super) fn new(
        manifest: Arc<FunctionManifest>,
        connector: TenantConnector,
        sink: CurrentSink,
    ) -> Self {
        Self { manifest, connector, sink }
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
        let manifest = self.manifest.clone();
        let connector = self.connector.clone();
        let sink = self.sink.clone();
        Box::new(async move {
            let sent = connector.send(&manifest.outbound_hosts, request, options.unwrap_or_default()).await;
            let sent = sent.map_err(|error| {
                if let SendError::Refused(refusal) = &error {
                    sink.refused(&format!("HTTP request to {refusal}"));
                }
                Error::from(error)
            })?;
            Ok((sent.response, Box::new(sent.connection) as Io))
        })
    }
}
