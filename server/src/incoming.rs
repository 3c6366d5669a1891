//! Accepted connections.
//!
//! Invariants: `TCP_NODELAY` is set (the transport's own setting is ignored for streams of
//! connections); once the kill token is cancelled, or its time is up, a connection fails at the
//! next moment it is looked at, and it is looked at then.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// How often an idle TCP connection is probed by the kernel.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// How long to wait after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The connections of `listener`; each ends when `kill` is cancelled or after `lifetime`.
pub(crate) fn connections(
    listener: TcpListener,
    kill: CancellationToken,
    lifetime: Option<Duration>,
) -> impl Stream<Item = io::Result<Connection>> {
    TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(TCP_KEEPALIVE))
        .then(|stream| async {
            if stream.is_err() {
                // Out of descriptors, most likely: the transport would ask again at once.
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
            stream
        })
        .map(move |stream| stream.map(|stream| Connection::new(stream, &kill, lifetime)))
}

/// A TCP connection that can be cut from outside.
pub(crate) struct Connection {
    stream: TcpStream,
    killed: Pin<Box<WaitForCancellationFutureOwned>>,
    expired: Option<Pin<Box<tokio::time::Sleep>>>,
    is_cut: bool,
}

impl Connection {
    fn new(stream: TcpStream, kill: &CancellationToken, lifetime: Option<Duration>) -> Self {
        Self {
            stream,
            // A token of its own: waiting on it takes no lock that other connections share.
            killed: Box::pin(kill.child_token().cancelled_owned()),
            expired: lifetime.map(|lifetime| Box::pin(tokio::time::sleep(lifetime))),
            is_cut: false,
        }
    }

    /// Whether the connection has been cut; otherwise it is looked at again when it is.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_cut = self.is_cut
            || self.killed.as_mut().poll(cx).is_ready()
            || self.expired.as_mut().is_some_and(|expired| expired.as_mut().poll(cx).is_ready());
        self.is_cut
    }

    /// What an operation says: pending ones are given up when the connection is cut.
    fn outcome<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_pending() && self.poll_cut(cx) {
            return Poll::Ready(Err(cut()));
        }
        outcome
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut {
            return Poll::Ready(Err(cut()));
        }
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.outcome(cx, outcome)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Err(cut()));
        }
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.outcome(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Err(cut()));
        }
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.outcome(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the server has cut this connection")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn pair(kill: &CancellationToken, lifetime: Option<Duration>) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let mut incoming = Box::pin(connections(listener, kill.clone(), lifetime));
        (incoming.next().await.unwrap().unwrap(), client)
    }

    #[tokio::test]
    async fn an_idle_connection_is_cut_by_the_token() {
        let kill = CancellationToken::new();
        let (mut connection, _client) = pair(&kill, None).await;
        let reader = tokio::spawn(async move { connection.read_u8().await });
        tokio::task::yield_now().await;
        kill.cancel();
        let error = reader.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_lifetime() {
        let kill = CancellationToken::new();
        let (mut connection, _client) = pair(&kill, Some(Duration::from_millis(20))).await;
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
}
