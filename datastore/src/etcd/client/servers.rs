//! The servers of an etcd cluster, one of which is in use until it fails.

use super::{ClientError, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// The time within which a connection is made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// A connection is probed after so long without traffic, and dead if the probe is not answered
/// within the same time.
const SILENCE_MAX: Duration = Duration::from_secs(3);

pub(super) struct Servers {
    all: Vec<Server>,
    /// The index of the server in use.
    current: AtomicUsize,
}

/// A server and the connection to it, which is made, and made again, when a request needs it.
#[derive(Clone)]
pub(super) struct Server {
    index: usize,
    pub(super) url: String,
    pub(super) channel: Channel,
}

impl Servers {
    /// The servers at `urls`, of which there is at least one. `tls` is for those with `https`.
    pub(super) fn new(urls: &[String], tls: &ClientTlsConfig) -> Result<Self> {
        let server = |(index, url): (usize, &String)| match channel(url, tls) {
            Ok(channel) => Ok(Server { index, url: url.clone(), channel }),
            Err(source) => Err(ClientError::Server { server: url.clone(), source }),
        };
        let all = urls.iter().enumerate().map(server).collect::<Result<_>>()?;
        Ok(Self { all, current: AtomicUsize::new(0) })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The server in use.
    pub(super) fn current(&self) -> Server {
        self.all[self.current.load(Ordering::Relaxed)].clone()
    }

    /// Takes the next server into use, unless another request has moved on from `failed` already.
    pub(super) fn leave(&self, failed: &Server) {
        let next = (failed.index + 1) % self.all.len();
        let _ = self.current.compare_exchange(failed.index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn channel(url: &str, tls: &ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
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
