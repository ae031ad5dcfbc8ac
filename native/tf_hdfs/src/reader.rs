//! An open file that is read: anywhere, by any thread, and fast in sequence.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use hdfs_native::Client;
use hdfs_native::file::FileReader;

use crate::connection::{Connection, connection, locked, refuse_forked};
use crate::location::Location;
use crate::status::{Code, Outcome, failure};

/// Somebody may still write the file, and TensorBoard keeps it open and reads on: at its end the length is looked up
/// again, not more often than this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Blocks and length of the file, as they were at that time.
struct Seen {
    file: FileReader,
    at: Instant,
}

/// A stream of the file from `next` on, begun at the second of two reads that adjoin: a read anywhere is a request to a
/// DataNode of its own, and costs a millisecond.
struct Sequence {
    next: u64,
    stream: Option<BoxStream<'static, hdfs_native::Result<Bytes>>>,
    rest: Bytes, // read from the stream, and not yet asked for
}

impl Sequence {
    fn restart(&mut self, next: u64) {
        *self = Sequence { next, stream: None, rest: Bytes::new() };
    }
}

pub struct Reader {
    url: String,
    path: String,
    client: Client,
    pid: u32,
    seen: Mutex<Arc<Seen>>,
    sequence: Mutex<Sequence>,
}

impl Reader {
    pub fn open(location: &Location) -> Outcome<Reader> {
        let connection = connection()?;
        let (client, url) = (connection.client(location)?, location.url());
        let file = connection.wait(&url, client.read(&location.path))?;
        Ok(Reader {
            url,
            path: location.path.clone(),
            client,
            pid: std::process::id(),
            seen: Mutex::new(Arc::new(Seen { file, at: Instant::now() })),
            sequence: Mutex::new(Sequence { next: u64::MAX, stream: None, rest: Bytes::new() }),
        })
    }

    /// How long the file was when that was looked up last, in bytes.
    pub fn length(&self) -> u64 {
        locked(&self.seen).file.file_length() as u64
    }

    /// Fill `out` with the bytes from `offset` on; how many there were: fewer than asked for at the end of the file alone.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Outcome<usize> {
        refuse_forked(self.pid)?;
        let connection = connection()?;
        let end = offset.saturating_add(out.len() as u64);
        let seen = self.seen_until(connection, end)?;
        let length = seen.file.file_length() as u64;
        let count = end.min(length).saturating_sub(offset) as usize;
        if count == 0 {
            return Ok(0);
        }
        let out = &mut out[..count];
        // Where another thread reads in sequence, this one's read is one of its own.
        if let Ok(mut sequence) = self.sequence.try_lock() {
            if sequence.next == offset {
                let read = self.read_on(connection, &seen.file, &mut sequence, out);
                let next = if read.is_ok() { offset + count as u64 } else { u64::MAX };
                match read {
                    Ok(()) => sequence.next = next,
                    Err(_) => sequence.restart(next),
                }
                return read.map(|()| count);
            }
            sequence.restart(offset + count as u64);
        }
        let mut stream = seen.file.read_range_stream(offset as usize, count).boxed();
        self.fill(connection, &mut stream, &mut Bytes::new(), out)?;
        Ok(count)
    }

    /// The file as it was seen; looked at again where it is asked for more than there was.
    fn seen_until(&self, connection: &Connection, end: u64) -> Outcome<Arc<Seen>> {
        let seen = locked(&self.seen).clone();
        if end <= seen.file.file_length() as u64 || seen.at.elapsed() < LOOK_AGAIN {
            return Ok(seen);
        }
        let file = connection.wait(&self.url, self.client.read(&self.path))?;
        let grown = file.file_length() != seen.file.file_length();
        let seen = Arc::new(Seen { file, at: Instant::now() });
        *locked(&self.seen) = seen.clone();
        if grown {
            let mut sequence = locked(&self.sequence);
            let next = sequence.next;
            sequence.restart(next);
        }
        Ok(seen)
    }

    /// Read from `sequence.next` on.
    fn read_on(
        &self,
        connection: &Connection,
        file: &FileReader,
        sequence: &mut Sequence,
        out: &mut [u8],
    ) -> Outcome<()> {
        let Sequence { next, stream, rest } = sequence;
        let stream = stream.get_or_insert_with(|| {
            let from = *next as usize;
            file.read_range_stream(from, file.file_length() - from).boxed()
        });
        self.fill(connection, stream, rest, out)
    }

    /// Fill `out` from `rest` and then from the stream; what the stream gives beyond it becomes `rest`.
    fn fill(
        &self,
        connection: &Connection,
        stream: &mut BoxStream<'static, hdfs_native::Result<Bytes>>,
        rest: &mut Bytes,
        out: &mut [u8],
    ) -> Outcome<()> {
        let mut done = 0;
        while done < out.len() {
            if rest.is_empty() {
                match connection.wait(&self.url, async { stream.next().await.transpose() })? {
                    Some(bytes) => *rest = bytes,
                    None => {
                        let text = format!("{}: its blocks end {} bytes too early", self.url, out.len() - done);
                        return failure(Code::DataLoss, text);
                    }
                }
            }
            let take = rest.len().min(out.len() - done);
            out[done..done + take].copy_from_slice(&rest.split_to(take));
            done += take;
        }
        Ok(())
    }
}
