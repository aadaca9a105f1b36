//! Servers of an etcd cluster. One of them is current until it fails.

use super::{ClientError, ClientResult};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// Time limit of a connection attempt.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Keep-alive interval: the client probes a connection after this time without traffic, and closes
/// the connection if the probe is not answered within the same time.
const SILENCE_MAX: Duration = Duration::from_secs(3);

pub(super) struct Servers {
    all: Vec<EtcdServer>,
    /// Index of the current server.
    current: AtomicUsize,
}

/// A server and its connection, which is opened or reopened on demand.
#[derive(Clone)]
pub(super) struct EtcdServer {
    index: usize,
    pub(super) url: String,
    pub(super) channel: Channel,
}

impl Servers {
    /// Creates the servers at `urls`, of which there is at least one. `tls` applies to `https`
    /// URLs.
    pub(super) fn new(urls: &[String], tls: &ClientTlsConfig) -> ClientResult<Self> {
        let server = |(index, url): (usize, &String)| match channel(url, tls) {
            Ok(channel) => Ok(EtcdServer { index, url: url.clone(), channel }),
            Err(source) => Err(ClientError::Server { server: url.clone(), source }),
        };
        let all = urls.iter().enumerate().map(server).collect::<ClientResult<_>>()?;
        Ok(Self { all, current: AtomicUsize::new(0) })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The current server.
    pub(super) fn current(&self) -> EtcdServer {
        self.all[self.current.load(Ordering::Relaxed)].clone()
    }

    /// Switches from `failed` to the next server, unless another request has already switched.
    pub(super) fn leave(&self, failed: &EtcdServer) {
        let next = (failed.index + 1) % self.all.len();
        let _ = self.current.compare_exchange(failed.index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn channel(url: &str, tls: &ClientTlsConfig) -> ClientResult<Channel, tonic::transport::Error> {
    let mut endpoint = Endpoint::from_shared(url.to_owned())?
        .connect_timeout(CONNECT_TIME_MAX)
        .http2_keep_alive_interval(SILENCE_MAX)
        .keep_alive_timeout(SILENCE_MAX)
        .keep_alive_while_idle(true);
    if url.starts_with("https:") {
        endpoint = endpoint.tls_config(tls.clone())?;
    }
    Ok(endpoint.connect_lazy())
}
