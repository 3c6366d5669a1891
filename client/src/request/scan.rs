//! Scan: the entries of a range, in order, as a stream.
//!
//! Invariants: every entry of the range comes once, in byte order (or its reverse), across shards,
//! splits, moves and broken connections; at most one answer of a server (about 1 MiB) is held.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{Stream, TryStreamExt as _};
use vmemkv_proto::v1;

use crate::client::Client;
use crate::deadline::Deadline;
use crate::dispatch::ScanChunks;
use crate::error::Result;
use crate::key_range::{IntoKeyRange, KeyRange};

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The value; empty if only keys were asked for.
    pub value: Bytes,
}

/// A scan to be: what to read and how. [`Scan::stream`] starts it.
#[derive(Clone, Debug)]
pub struct Scan {
    client: Client,
    range: KeyRange,
    prefix: Bytes,
    limit: u64,
    reverse: bool,
    keys_only: bool,
    deadline: Option<Duration>,
}

impl Client {
    /// A scan of a range: `..`, `"a".."b"`, `"a"..`, or a [`KeyRange`].
    ///
    /// ```no_run
    /// # async fn example(client: vmemkv_client::Client) -> vmemkv_client::Result<()> {
    /// use futures::TryStreamExt as _;
    ///
    /// let mut newest = client.scan("log:a".."log:b").reverse().limit(10).stream();
    /// while let Some(entry) = newest.try_next().await? {
    ///     println!("{:?} = {:?}", entry.key, entry.value);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan(&self, range: impl IntoKeyRange) -> Scan {
        Scan {
            client: self.clone(),
            range: range.into_key_range(),
            prefix: Bytes::new(),
            limit: 0,
            reverse: false,
            keys_only: false,
            deadline: None,
        }
    }
}

impl Scan {
    /// Only keys that begin with this.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = Bytes::copy_from_slice(prefix.as_ref());
        self
    }

    /// At most this many entries; 0: all.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// From the last key to the first.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Leaves the values out.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// How long the whole scan may take. Without one it may take for ever, as long as each step
    /// ends within the client's deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Starts the scan.
    pub fn stream(self) -> ScanStream {
        let deadline = self.deadline.map_or(Deadline::none(), Deadline::within);
        let (start, end) = self.range.into_wire();
        let request = v1::ScanRequest {
            start,
            end,
            prefix: self.prefix,
            limit: self.limit,
            reverse: self.reverse,
            keys_only: self.keys_only,
            route: None,
        };
        let step = self.client.step();
        ScanStream {
            chunks: self.client.dispatcher().scan(request, deadline, step),
            entries: Vec::new().into_iter(),
        }
    }

    /// Reads all entries into memory: for ranges, or a limit, that are known to be small.
    pub async fn collect(self) -> Result<Vec<Entry>> {
        self.stream().try_collect().await
    }
}

/// The entries of a running scan.
#[derive(Debug)]
pub struct ScanStream {
    chunks: ScanChunks,
    entries: std::vec::IntoIter<v1::Entry>,
}

impl Stream for ScanStream {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Poll::Ready(Some(Ok(Entry { key: entry.key, value: entry.value })));
            }
            match futures::ready!(Pin::new(&mut self.chunks).poll_next(cx)) {
                Some(Ok(chunk)) => self.entries = chunk.entries.into_iter(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}
