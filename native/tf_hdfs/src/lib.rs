//! `hdfs://` and `viewfs://` for TensorFlow: the `hdfs-native` crate behind TensorFlow's C interface of file systems.
//!
//!     abi.rs        the C interface's tables, and memory that TensorFlow frees
//!     status.rs     errors: TensorFlow's codes, conversion of HDFS's errors, reporting to TensorFlow
//!     location.rs   a URL in its parts (pure)        pattern.rs   TensorFlow's wildcards (pure)
//!     connection.rs the clients of this process, and the deadline of each step
//!     reader.rs     a file open for reading          writer.rs    a file open for writing
//!     files.rs      both for the C interface         directory.rs the other operations, for the C interface
//!
//! The library links nothing of TensorFlow: one file serves all versions that have this interface.

mod abi;
mod connection;
mod directory;
mod files;
mod location;
mod pattern;
mod reader;
mod status;
mod writer;

use abi::{
    FilesystemOps, MemoryRegionOps, PluginInfo, PluginOps, RandomAccessFileOps, WritableFileOps, allocate, boxed,
    c_string, free,
};

const SCHEMES: [&str; 2] = ["hdfs", "viewfs"];

/// Called once by TensorFlow's `register_filesystem_plugin`. Starts nothing: the process may be one that forks workers.
///
/// # Safety
/// `info` is TensorFlow's, and may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_InitPlugin(info: *mut PluginInfo) {
    let schemes: &[&str] = if status::can_tell() { &SCHEMES } else { &[] };
    let tables = allocate(size_of::<PluginOps>() * schemes.len().max(1)) as *mut PluginOps;
    for (index, scheme) in schemes.iter().enumerate() {
        // SAFETY: the memory holds as many tables.
        unsafe { tables.add(index).write(tables_of(scheme)) };
    }
    // SAFETY: see above.
    unsafe {
        (*info).num_schemes = schemes.len();
        (*info).ops = tables;
        (*info).plugin_memory_allocate = Some(allocate);
        (*info).plugin_memory_free = Some(free);
    }
}

/// Make the tables of one scheme, in memory that TensorFlow frees.
fn tables_of(scheme: &str) -> PluginOps {
    PluginOps {
        scheme: c_string(scheme),
        filesystem_ops_abi: 0,
        filesystem_ops_api: 0,
        filesystem_ops_size: size_of::<FilesystemOps>(),
        filesystem_ops: boxed(directory::table()),
        random_access_file_ops_abi: 0,
        random_access_file_ops_api: 0,
        random_access_file_ops_size: size_of::<RandomAccessFileOps>(),
        random_access_file_ops: boxed(files::READERS),
        writable_file_ops_abi: 0,
        writable_file_ops_api: 0,
        writable_file_ops_size: size_of::<WritableFileOps>(),
        writable_file_ops: boxed(files::WRITERS),
        memory_region_ops_abi: 0,
        memory_region_ops_api: 0,
        memory_region_ops_size: size_of::<MemoryRegionOps>(),
        memory_region_ops: boxed(files::REGIONS),
    }
}
