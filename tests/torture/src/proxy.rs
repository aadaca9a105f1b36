//! TCP proxies that cut connections: network faults without privileges.

use anyhow::{Context as _, Result};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use weir_torture::plan::Cut;

/// Bytes that a connection carries at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// Proxy in front of one address. It ends on drop.
pub(crate) struct Proxy {
    address: SocketAddr,
    /// How the link is cut; `None`: it carries everything.
    cut: watch::Sender<Option<Cut>>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on a free port, in front of `target`.
    pub(crate) async fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("there is no free port")?;
        let address = listener.local_addr()?;
        let (cut, cuts) = watch::channel(None);
        let serving = tokio::spawn(serve(listener, target, cuts));
        Ok(Self { address, cut, serving })
    }

    /// Address of the proxy.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the link, or mends it.
    pub(crate) fn set(&self, cut: Option<Cut>) {
        self.cut.send_replace(cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, cuts: watch::Receiver<Option<Cut>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                // A connection that is closed at once is as good as a refused one for the client.
                if *cuts.borrow() != Some(Cut::Refuse) {
                    connections.spawn(connection(stream, target, cuts.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection, until it ends or the link is cut.
async fn connection(client: TcpStream, target: SocketAddr, cuts: watch::Receiver<Option<Cut>>) {
    let mut refusals = cuts.clone();
    let carried = async {
        let mut cuts = cuts.clone();
        // A new connection is made only over a link that carries something.
        let _ = cuts.wait_for(Option::is_none).await;
        let Ok(server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let there = pump(from_client, to_server, cuts.clone());
        let back = pump(from_server, to_client, cuts);
        tokio::join!(there, back);
    };
    tokio::select! {
        () = carried => {}
        _ = refusals.wait_for(|cut| *cut == Some(Cut::Refuse)) => {}
    }
}

/// Carries bytes in one direction while the link is whole.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cuts: watch::Receiver<Option<Cut>>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut buffer).await;
        // What arrives during the cut is carried afterwards, as TCP sends lost packets again.
        let _ = cuts.wait_for(Option::is_none).await;
        match read {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if to.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    /// A server that echoes each byte, behind a proxy.
    async fn echo() -> (Proxy, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        stream.write_all(&byte).await.unwrap();
                    }
                });
            }
        });
        let client = TcpStream::connect(proxy.address()).await.unwrap();
        (proxy, client)
    }

    async fn exchange(client: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        client.write_all(&[byte]).await?;
        client.read_u8().await
    }

    #[tokio::test]
    async fn silent_link_carries_bytes_after_the_cut() {
        let (proxy, mut client) = echo().await;
        assert_eq!(exchange(&mut client, 1).await.unwrap(), 1);
        proxy.set(Some(Cut::Silence));
        let silent = timeout(Duration::from_millis(100), exchange(&mut client, 2)).await;
        assert!(silent.is_err(), "{silent:?}");
        proxy.set(None);
        assert_eq!(client.read_u8().await.unwrap(), 2);
    }

    #[tokio::test]
    async fn refusing_link_closes_connections_and_takes_new_ones_after_the_cut() {
        let (proxy, mut client) = echo().await;
        assert_eq!(exchange(&mut client, 1).await.unwrap(), 1);
        proxy.set(Some(Cut::Refuse));
        client.read_u8().await.unwrap_err();
        if let Ok(mut refused) = TcpStream::connect(proxy.address()).await {
            exchange(&mut refused, 2).await.unwrap_err();
        }
        proxy.set(None);
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut client, 3).await.unwrap(), 3);
    }
}
