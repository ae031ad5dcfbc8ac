//! A file open for reading: at any position, by any thread, and fast in sequence.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use hdfs_native::Client;
use hdfs_native::file::FileReader;

use crate::connection::{Connection, connection, locked, refuse_forked};
use crate::location::Location;
use crate::status::{Code, Outcome, failure};

/// The file may still be written, and TensorBoard holds it open and reads on: at its end the length is checked again,
/// but not more often than this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Blocks and length of the file at a given time.
struct Seen {
    file: FileReader,
    at: Instant,
}

impl Seen {
    fn length(&self) -> u64 {
        self.file.file_length() as u64
    }
}

/// A stream of the file from `next` on, begun at the second of two adjacent reads: a read at any other position is a
/// separate request to a DataNode, and costs a millisecond.
struct Sequence {
    next: u64,
    stream: Option<BoxStream<'static, hdfs_native::Result<Bytes>>>,
    until: u64,  // the file's length when the stream was begun
    rest: Bytes, // read from the stream, and not requested yet
}

impl Sequence {
    fn at(next: u64) -> Sequence {
        Sequence { next, stream: None, until: 0, rest: Bytes::new() }
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
            sequence: Mutex::new(Sequence::at(u64::MAX)),
        })
    }

    /// Return the length of the file at the last check, in bytes.
    pub fn length(&self) -> u64 {
        locked(&self.seen).file.file_length() as u64
    }

    /// Fill `out` with the bytes from `offset` on; return their number, which is smaller than requested only at the end
    /// of the file.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Outcome<usize> {
        refuse_forked(self.pid)?;
        let connection = connection()?;
        let end = offset.saturating_add(out.len() as u64);
        let mut seen = locked(&self.seen).clone();
        if end > seen.length() && seen.at.elapsed() >= LOOK_AGAIN {
            seen = self.look_again(connection, seen)?;
        }
        match self.read_of(connection, &seen, offset, out) {
            // Its blocks may have moved by now, or need another token: a file that is open for a day is looked up
            // again.
            Err(error) if error.code == Code::Unavailable && seen.at.elapsed() >= LOOK_AGAIN => {
                let seen = self.look_again(connection, seen)?;
                self.read_of(connection, &seen, offset, out)
            }
            read => read,
        }
    }

    /// Look up the present state of the same file. A file that replaced it is a different one: its readers continue to
    /// see the old one, as on a local disk.
    fn look_again(&self, connection: &Connection, seen: Arc<Seen>) -> Outcome<Arc<Seen>> {
        let file = match connection.wait(&self.url, self.client.read(&self.path)) {
            Ok(file) => Some(file),
            Err(error) if error.code == Code::NotFound => None, // deleted: its blocks exist for a while
            Err(error) => return Err(error),
        };
        let is_same = |file: &FileReader| {
            seen.length() == 0
                || (file.file_length() as u64 >= seen.length() && file.first_block() == seen.file.first_block())
        };
        let Some(file) = file.filter(is_same) else { return Ok(seen) };
        let seen = Arc::new(Seen { file, at: Instant::now() });
        *locked(&self.seen) = seen.clone();
        Ok(seen)
    }

    fn read_of(&self, connection: &Connection, seen: &Seen, offset: u64, out: &mut [u8]) -> Outcome<usize> {
        let end = offset.saturating_add(out.len() as u64);
        let count = end.min(seen.length()).saturating_sub(offset) as usize;
        if count == 0 {
            return Ok(0);
        }
        let out = &mut out[..count];
        // While another thread reads in sequence, this read is made separately.
        if let Ok(mut sequence) = self.sequence.try_lock() {
            if sequence.next == offset {
                let read = self.read_on(connection, seen, &mut sequence, out);
                match read {
                    Ok(()) => sequence.next = offset + count as u64,
                    Err(_) => *sequence = Sequence::at(u64::MAX),
                }
                return read.map(|()| count);
            }
            *sequence = Sequence::at(offset + count as u64);
        }
        let mut stream = seen.file.read_range_stream(offset as usize, count).boxed();
        self.fill(connection, &mut stream, &mut Bytes::new(), out)?;
        Ok(count)
    }

    /// Read from `sequence.next` on.
    fn read_on(&self, connection: &Connection, seen: &Seen, sequence: &mut Sequence, out: &mut [u8]) -> Outcome<()> {
        if sequence.until != seen.length() {
            *sequence = Sequence::at(sequence.next);
        }
        let Sequence { next, stream, until, rest } = sequence;
        let stream = stream.get_or_insert_with(|| {
            let from = *next as usize;
            *until = seen.length();
            seen.file.read_range_stream(from, seen.file.file_length() - from).boxed()
        });
        self.fill(connection, stream, rest, out)
    }

    /// Fill `out` from `rest` and then from the stream; further bytes of the stream become `rest`.
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
