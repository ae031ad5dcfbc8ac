//! A file open for writing, from its beginning or its end; bytes are sent by the mebibyte.

use std::sync::Mutex;

use bytes::BytesMut;
use hdfs_native::WriteOptions;
use hdfs_native::file::FileWriter;

use crate::connection::{Connection, connection, locked, refuse_forked};
use crate::location::Location;
use crate::status::{Code, Failure, Outcome, failure};

const GATHERED: usize = 1 << 20; // bytes

pub struct Writer {
    url: String,
    pid: u32,
    state: Mutex<State>,
}

struct State {
    file: FileWriter,
    gathered: BytesMut,
    position: u64,
    unsynced: bool,
    end: End,
}

/// Whether more can be written. A file of which a part is lost is not completed: it would look complete.
enum End {
    Open,
    Closed,
    Broken(String),
}

impl Writer {
    pub fn open(location: &Location, append: bool) -> Outcome<Writer> {
        let connection = connection()?;
        let (client, url) = (connection.client(location)?, location.url());
        let there = match append.then(|| connection.wait(&url, client.get_file_info(&location.path))) {
            None => None,
            Some(Err(error)) if error.code == Code::NotFound => None,
            Some(Err(error)) => return Err(error),
            Some(Ok(status)) if status.isdir => {
                return failure(Code::FailedPrecondition, format!("{url}: is a directory"));
            }
            Some(Ok(status)) => Some(status.length as u64),
        };
        let file = match there {
            Some(_) => connection.wait(&url, client.append(&location.path)).map_err(held_by_another),
            None => {
                let options = WriteOptions::default().overwrite(true);
                connection.wait(&url, client.create(&location.path, options)).map_err(is_a_directory)
            }
        }?;
        let state =
            State { file, gathered: BytesMut::new(), position: there.unwrap_or(0), unsynced: false, end: End::Open };
        Ok(Writer { url, pid: std::process::id(), state: Mutex::new(state) })
    }

    pub fn append(&self, bytes: &[u8]) -> Outcome<()> {
        let connection = self.connection()?;
        let mut state = locked(&self.state);
        self.refuse_ended(&state)?;
        for part in bytes.chunks(GATHERED) {
            state.gathered.extend_from_slice(part);
            if state.gathered.len() >= GATHERED {
                self.send(connection, &mut state)?;
            }
        }
        state.position += bytes.len() as u64;
        Ok(())
    }

    /// Return the position of the next byte.
    pub fn tell(&self) -> i64 {
        locked(&self.state).position as i64
    }

    /// Make all written bytes visible to readers, and stored on disk by all DataNodes: for TensorFlow's Flush and Sync
    /// alike, as the client has nothing in between. Files with erasure coding support neither, also with Java's client:
    /// they are left as they are.
    pub fn sync(&self) -> Outcome<()> {
        let connection = self.connection()?;
        let mut state = locked(&self.state);
        self.refuse_ended(&state)?;
        self.send(connection, &mut state)?;
        if state.unsynced {
            match connection.wait(&self.url, state.file.hsync()) {
                Err(error) if !error.message.contains("erasure-coded") => {
                    state.end = End::Broken(error.message.clone());
                    return Err(error);
                }
                _ => state.unsynced = false,
            }
        }
        Ok(())
    }

    /// Complete the file; no effect if that is done already.
    pub fn close(&self) -> Outcome<()> {
        let connection = self.connection()?;
        let mut state = locked(&self.state);
        if matches!(state.end, End::Closed) {
            return Ok(());
        }
        self.refuse_ended(&state)?;
        self.send(connection, &mut state)?;
        let closed = connection.wait(&self.url, state.file.close());
        state.end = match &closed {
            Ok(()) => End::Closed,
            Err(error) => End::Broken(error.message.clone()),
        };
        closed
    }

    fn connection(&self) -> Outcome<&'static Connection> {
        refuse_forked(self.pid)?;
        connection()
    }

    fn refuse_ended(&self, state: &State) -> Outcome<()> {
        match &state.end {
            End::Open => Ok(()),
            End::Closed => failure(Code::FailedPrecondition, format!("{}: is closed", self.url)),
            End::Broken(cause) => failure(
                Code::FailedPrecondition,
                format!(
                    "{}: an earlier write failed, a part is lost, and the file stays incomplete: {cause}",
                    self.url
                ),
            ),
        }
    }

    fn send(&self, connection: &Connection, state: &mut State) -> Outcome<()> {
        if state.gathered.is_empty() {
            return Ok(());
        }
        if let Err(error) = connection.wait(&self.url, state.file.write_bytes(state.gathered.split().freeze())) {
            state.end = End::Broken(error.message.clone());
            return Err(error);
        }
        state.unsynced = true;
        Ok(())
    }
}

/// The crate reports "already exists" for a file that another client has open, and for a folder with the name of a new
/// file.
fn held_by_another(error: Failure) -> Failure {
    match error.code {
        Code::AlreadyExists => Failure { code: Code::Aborted, ..error },
        _ => error,
    }
}

fn is_a_directory(error: Failure) -> Failure {
    match error.code {
        Code::AlreadyExists => Failure { code: Code::FailedPrecondition, ..error },
        _ => error,
    }
}
