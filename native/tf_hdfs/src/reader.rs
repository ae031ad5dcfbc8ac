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

impl Seen {
    fn length(&self) -> u64 {
        self.file.file_length() as u64
    }
}

/// A stream of the file from `next` on, begun at the second of two reads that adjoin: a read anywhere is a request to a
/// DataNode of its own, and costs a millisecond.
struct Sequence {
    next: u64,
    stream: Option<BoxStream<'static, hdfs_native::Result<Bytes>>>,
    until: u64,  // the file's length when the stream was begun
    rest: Bytes, // read from the stream, and not yet asked for
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

    /// How long the file was when that was looked up last, in bytes.
    pub fn length(&self) -> u64 {
        locked(&self.seen).file.file_length() as u64
    }

    /// Fill `out` with the bytes from `offset` on; how many there were: fewer than asked for at the end of the file alone.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Outcome<usize> {
        refuse_forked(self.pid)?;
        let connection = connection()?;
        let end = offset.saturating_add(out.len() as u64);
        let mut seen = locked(&self.seen).clone();
        if end > seen.length() && seen.at.elapsed() >= LOOK_AGAIN {
            seen = self.look_again(connection, seen)?;
        }
        match self.read_of(connection, &seen, offset, out) {
            // Its blocks may lie elsewhere by now, or have another token: who keeps a file open for a day asks again.
            Err(error) if error.code == Code::Unavailable && seen.at.elapsed() >= LOOK_AGAIN => {
                let seen = self.look_again(connection, seen)?;
                self.read_of(connection, &seen, offset, out)
            }
            read => read,
        }
    }

    /// The same file as it is now. One that was put in its place is another one: to its readers it stays what it was, as on
    /// a local disk.
    fn look_again(&self, connection: &Connection, seen: Arc<Seen>) -> Outcome<Arc<Seen>> {
        let file = match connection.wait(&self.url, self.client.read(&self.path)) {
            Ok(file) => Some(file),
            Err(error) if error.code == Code::NotFound => None, // deleted: its blocks live a while
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
        // Where another thread reads in sequence, this one's read is one of its own.
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
