//! The clients of this process, and the deadline of each remote step.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdfs_native::{Client, ClientBuilder};
use tokio::runtime::{Builder, Runtime};

use crate::location::Location;
use crate::status::{Code, Failure, Outcome, failure};

const TIMEOUT: &str = "HOPSML_STORAGE_TIMEOUT_S"; // also the timeout of hopsml's own calls
const DEFAULT_TIMEOUT_S: f64 = 30.0;
const CLIENT: &str = "HOPSML_HDFS_CLIENT"; // key=value,key=value: in addition to Hadoop's configuration
const THREADS: usize = 2; // they wait for sockets; the caller's thread does the rest

pub struct Connection {
    pid: u32,
    runtime: Runtime,
    clients: Mutex<HashMap<String, Client>>, // by scheme and authority
    deadline: Duration,
}

/// Without a lock: a child forked while another thread holds one could never acquire it.
static CONNECTION: AtomicPtr<Connection> = AtomicPtr::new(std::ptr::null_mut());

/// Return the connection of this process, made at its first use: loading the library starts no thread, so that the
/// process may fork.
pub fn connection() -> Outcome<&'static Connection> {
    let seen = CONNECTION.load(Ordering::Acquire);
    // SAFETY: null, or made below and never freed.
    if let Some(connection) = unsafe { seen.as_ref() } {
        refuse_forked(connection.pid)?;
        return Ok(connection);
    }
    let made = Box::into_raw(Box::new(Connection::new()?));
    match CONNECTION.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: never freed.
        Ok(_) => Ok(unsafe { &*made }),
        Err(other) => {
            // SAFETY: no other reference exists; the other one is never freed.
            unsafe {
                drop(Box::from_raw(made));
                Ok(&*other)
            }
        }
    }
}

/// Return an error if `pid`, the creator of an object, is not this process but one from which it was forked.
///
/// hdfs-native reuses sockets to DataNodes for 3 s: a child that uses one shares it with its parent, and either may
/// read the other's data as its own. Measured: the child hangs, or the parent's data are wrong.
pub fn refuse_forked(pid: u32) -> Outcome<()> {
    if pid == std::process::id() {
        return Ok(());
    }
    failure(
        Code::FailedPrecondition,
        "this process was forked from one that had used hdfs:// in TensorFlow, and shares its sockets: start it by spawn, \
         or fork it before the first path",
    )
}

impl Connection {
    fn new() -> Outcome<Connection> {
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("hopsml-hdfs").enable_all().build();
        let runtime =
            runtime.or_else(|error| failure(Code::ResourceExhausted, format!("no thread for hdfs://: {error}")))?;
        Ok(Connection { pid: std::process::id(), runtime, clients: Mutex::default(), deadline: deadline()? })
    }

    /// Return the client of a file system; configuration, user, ticket and tokens are found as by Hadoop's own clients.
    pub fn client(&self, location: &Location) -> Outcome<Client> {
        let mut clients = locked(&self.clients);
        if let Some(client) = clients.get(&location.base) {
            return Ok(client.clone());
        }
        let client = ClientBuilder::new()
            .with_url(format!("{}/", location.base))
            .with_config(beside_configuration(&location.base))
            .with_io_runtime(self.runtime.handle().clone())
            .build()
            .map_err(|error| Failure::of_hdfs(&location.url(), &error))?;
        clients.insert(location.base.clone(), client.clone());
        Ok(client)
    }

    /// Carry out one remote step, on the caller's thread, within the deadline.
    pub fn wait<T>(&self, url: &str, step: impl Future<Output = hdfs_native::Result<T>>) -> Outcome<T> {
        match self.runtime.block_on(async { tokio::time::timeout(self.deadline, step).await }) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure::of_hdfs(url, &error)),
            Err(_) => failure(
                Code::DeadlineExceeded,
                format!("{url}: no answer from HDFS in {} s ({TIMEOUT})", self.deadline.as_secs_f64()),
            ),
        }
    }
}

/// Lock a mutex, also after a panic of a thread that held it: each holder leaves the value consistent.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits for giving up a single NameNode do not apply to a name service, whose failover takes time; a name without
/// a port may be one.
fn beside_configuration(base: &str) -> Vec<(String, String)> {
    let authority = base.split_once("://").map_or("", |(_, authority)| authority);
    let may_be_several = !authority.is_empty() && !authority.contains(':');
    let text = std::env::var(CLIENT).unwrap_or_default();
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(key, _)| !(may_be_several && key.starts_with("dfs.client.failover.")))
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

fn deadline() -> Outcome<Duration> {
    let text = std::env::var(TIMEOUT).unwrap_or_default();
    let seconds = if text.is_empty() { Some(DEFAULT_TIMEOUT_S) } else { text.parse().ok() };
    match seconds.filter(|seconds| *seconds > 0.0).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(deadline) => Ok(deadline),
        None => failure(
            Code::InvalidArgument,
            format!("{TIMEOUT}={text:?}: it must be a number of seconds above 0; unset it for {DEFAULT_TIMEOUT_S} s"),
        ),
    }
}
