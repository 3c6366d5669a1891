//! Where an import's entries come from: a thread that reads and parses ahead, and a stream of
//! operations that remembers where each one was.
//!
//! Invariants: at most `CHUNKS_AHEAD` chunks are parsed ahead, and at most as many entries as there
//! are permits are on their way to the service; positions are in the order of the operations.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};
use vmemkv_client::Operation;

use crate::transfer::{FormatArgs, LineError, Record, Records, Start};

/// Parsed chunks that wait to be sent.
const CHUNKS_AHEAD: usize = 4;
/// A chunk is passed on once it holds this many bytes, or when the input has nothing more at hand.
const CHUNK_BYTES: usize = 256 << 10;
/// A chunk is passed on once it holds this many entries.
const CHUNK_ENTRIES: usize = 512;
/// What is read from the input at once.
pub(super) const READ_BYTES: usize = 256 << 10;

/// An input that is read by a thread of its own.
pub(super) type Input = BufReader<Box<dyn Read + Send>>;

/// A file as it was when it was opened, to see that nobody writes to it.
#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    before: (u64, SystemTime),
}

impl Opened {
    /// The file as it is now. Its own handle: a file renamed to the path later is another file.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        Ok(Self { before: version(&file)?, file })
    }

    /// How long it was.
    pub(super) fn len(&self) -> u64 {
        self.before.0
    }

    /// Whether it has been written to since.
    pub(super) fn has_changed(&self) -> io::Result<bool> {
        Ok(version(&self.file)? != self.before)
    }
}

fn version(file: &File) -> io::Result<(u64, SystemTime)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified()?))
}

/// Where an entry was in the input.
#[derive(Clone, Debug)]
pub(super) struct Position {
    /// Its key, for messages.
    pub(super) key: bytes::Bytes,
    /// Its line.
    pub(super) line: u64,
    /// Behind it: where to go on once it is stored.
    pub(super) next: Start,
}

/// What the sending and the receiving side share.
#[derive(Debug)]
pub(super) struct Flow {
    positions: Mutex<VecDeque<Position>>,
    broken: Mutex<Option<LineError>>,
    permits: Semaphore,
}

impl Flow {
    /// At most `permits` entries are under way at once.
    pub(super) fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            positions: Mutex::default(),
            broken: Mutex::default(),
            permits: Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)),
        })
    }

    /// The first entry under way has been answered.
    pub(super) fn answered(&self) -> Option<Position> {
        self.permits.add_permits(1);
        lock(&self.positions).pop_front()
    }

    /// The line at which reading stopped.
    pub(super) fn broken_line(&self) -> Option<LineError> {
        lock(&self.broken).clone()
    }
}

/// Reads `input` from `start` on in a thread, and returns its entries as operations.
pub(super) fn operations(
    input: Input,
    format: FormatArgs,
    start: Start,
    flow: &Arc<Flow>,
) -> impl Stream<Item = Operation> + Send + 'static + use<> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let reader = Arc::clone(flow);
    tokio::task::spawn_blocking(move || read(input, format, start, &reader, &sender));
    let flow = Arc::clone(flow);
    let chunks =
        stream::unfold(receiver, |mut chunks| async { chunks.recv().await.map(|c| (c, chunks)) });
    chunks.flat_map(stream::iter).then(move |(record, next)| {
        let flow = Arc::clone(&flow);
        async move {
            if let Ok(permit) = flow.permits.acquire().await {
                permit.forget();
            }
            let Record { key, value, line, .. } = record;
            let operation = Operation::put(&key, value);
            lock(&flow.positions).push_back(Position { key, line, next });
            operation
        }
    })
}

/// Parses until the end, a broken line, or until nobody listens.
fn read(
    input: Input,
    format: FormatArgs,
    start: Start,
    flow: &Flow,
    chunks: &mpsc::Sender<Vec<(Record, Start)>>,
) {
    let mut records = Records::new(input, format, start);
    let mut chunk = Vec::new();
    let mut bytes = 0;
    loop {
        match records.next_record() {
            Ok(Some(record)) => {
                bytes += record.key.len() + record.value.len();
                chunk.push((record, records.position()));
            }
            Ok(None) => break,
            Err(error) => {
                *lock(&flow.broken) = Some(error);
                break;
            }
        }
        let nothing_at_hand = records.input().buffer().is_empty();
        if bytes >= CHUNK_BYTES || chunk.len() >= CHUNK_ENTRIES || nothing_at_hand {
            bytes = 0;
            if chunks.blocking_send(std::mem::take(&mut chunk)).is_err() {
                return;
            }
        }
    }
    // The receiver may have gone: then nobody needs the rest.
    let _ = chunks.blocking_send(chunk);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &'static str) -> Input {
        BufReader::new(Box::new(text.as_bytes()))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn entries_come_with_their_positions_up_to_a_broken_line() {
        let text = "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"b\",\"value\":\"2\"}\nbroken\n";
        let flow = Flow::new(10);
        let all: Vec<_> =
            operations(input(text), FormatArgs::default(), Start::default(), &flow).collect().await;
        let keys: Vec<_> = all.iter().map(Operation::key).collect();
        assert_eq!(keys, [b"a", b"b"]);
        let first = flow.answered().unwrap();
        assert_eq!((first.line, first.next), (1, Start { offset: 24, lines: 1 }));
        let second = flow.answered().unwrap();
        assert_eq!((second.line, second.next), (3, Start { offset: 49, lines: 3 }));
        assert_eq!(flow.broken_line().unwrap().line, 4);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn entries_under_way_are_bounded() {
        let text = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
        let flow = Flow::new(1);
        let entries = operations(input(text), FormatArgs::default(), Start::default(), &flow);
        futures::pin_mut!(entries);
        assert_eq!(entries.next().await.unwrap().key(), b"a");
        assert!(futures::poll!(entries.next()).is_pending());
        flow.answered().unwrap();
        assert_eq!(entries.next().await.unwrap().key(), b"b");
    }
}
