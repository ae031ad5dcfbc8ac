//! The tables of TensorFlow's `filesystem_interface.h` (ABI 0), in its order, and memory that TensorFlow frees.
//!
//! The tables are passed with their sizes, so that TensorFlow may append entries.

use std::ffi::{c_char, c_int, c_void};

/// Opaque: only TensorFlow uses its content.
#[repr(C)]
pub struct TfStatus {
    _private: [u8; 0],
}

/// `TF_RandomAccessFile`, `TF_WritableFile`, `TF_ReadOnlyMemoryRegion` and `TF_Filesystem`: one pointer of the plugin.
#[repr(C)]
pub struct Handle {
    pub plugin: *mut c_void,
}

impl Handle {
    /// Store `value` in the handle until `take` is called for it.
    ///
    /// # Safety
    /// `handle` may be written to.
    pub unsafe fn keep<T>(handle: *mut Handle, value: T) {
        // SAFETY: see above.
        unsafe { (*handle).plugin = Box::into_raw(Box::new(value)) as *mut c_void };
    }

    /// Return the stored value.
    ///
    /// # Safety
    /// `keep` was called for this handle with a T, `take` was not, and neither is while the result is used.
    pub unsafe fn kept<'a, T>(handle: *const Handle) -> &'a T {
        // SAFETY: see above.
        unsafe { &*((*handle).plugin as *const T) }
    }

    /// Remove the stored value and return it to the caller.
    ///
    /// # Safety
    /// Like `kept`, and the handle is not used afterwards.
    pub unsafe fn take<T>(handle: *mut Handle) -> Box<T> {
        // SAFETY: see above.
        unsafe { Box::from_raw((*handle).plugin as *mut T) }
    }
}

#[repr(C)]
pub struct FileStatistics {
    pub length: i64,     // bytes
    pub mtime_nsec: i64, // since 1970
    pub is_directory: bool,
}

#[repr(C)]
pub struct RandomAccessFileOps {
    pub cleanup: extern "C" fn(*mut Handle),
    pub read: extern "C" fn(*const Handle, u64, usize, *mut c_char, *mut TfStatus) -> i64,
}

#[repr(C)]
pub struct WritableFileOps {
    pub cleanup: extern "C" fn(*mut Handle),
    pub append: extern "C" fn(*const Handle, *const c_char, usize, *mut TfStatus),
    pub tell: extern "C" fn(*const Handle, *mut TfStatus) -> i64,
    pub flush: extern "C" fn(*const Handle, *mut TfStatus),
    pub sync: extern "C" fn(*const Handle, *mut TfStatus),
    pub close: extern "C" fn(*const Handle, *mut TfStatus),
}

#[repr(C)]
pub struct MemoryRegionOps {
    pub cleanup: extern "C" fn(*mut Handle),
    pub data: extern "C" fn(*const Handle) -> *const c_void,
    pub length: extern "C" fn(*const Handle) -> u64,
}

pub type OnPath = extern "C" fn(*const Handle, *const c_char, *mut TfStatus);
pub type OnTwoPaths = extern "C" fn(*const Handle, *const c_char, *const c_char, *mut TfStatus);
pub type Opening = extern "C" fn(*const Handle, *const c_char, *mut Handle, *mut TfStatus);
pub type Listing = extern "C" fn(*const Handle, *const c_char, *mut *mut *mut c_char, *mut TfStatus) -> c_int;

#[repr(C)]
pub struct FilesystemOps {
    pub init: extern "C" fn(*mut Handle, *mut TfStatus),
    pub cleanup: extern "C" fn(*mut Handle),
    pub new_random_access_file: Option<Opening>,
    pub new_writable_file: Option<Opening>,
    pub new_appendable_file: Option<Opening>,
    pub new_read_only_memory_region_from_file: Option<Opening>,
    pub create_dir: Option<OnPath>,
    pub recursively_create_dir: Option<OnPath>,
    pub delete_file: Option<OnPath>,
    pub delete_dir: Option<OnPath>,
    pub delete_recursively: Option<extern "C" fn(*const Handle, *const c_char, *mut u64, *mut u64, *mut TfStatus)>,
    pub rename_file: Option<OnTwoPaths>,
    pub copy_file: Option<OnTwoPaths>, // null: TensorFlow reads and writes
    pub path_exists: Option<OnPath>,
    pub paths_exist: *mut c_void, // null: TensorFlow calls path_exists for each
    pub stat: Option<extern "C" fn(*const Handle, *const c_char, *mut FileStatistics, *mut TfStatus)>,
    pub is_directory: Option<extern "C" fn(*const Handle, *const c_char, *mut TfStatus) -> bool>,
    pub get_file_size: Option<extern "C" fn(*const Handle, *const c_char, *mut TfStatus) -> i64>,
    pub translate_name: Option<extern "C" fn(*const Handle, *const c_char) -> *mut c_char>,
    pub get_children: Option<Listing>,
    pub get_matching_paths: Option<Listing>,
    pub flush_caches: *mut c_void,
    pub unused: [*mut c_void; 11], // transactions (6), configuration (5): not called by TensorFlow
}

#[repr(C)]
pub struct PluginOps {
    pub scheme: *mut c_char,
    pub filesystem_ops_abi: c_int,
    pub filesystem_ops_api: c_int,
    pub filesystem_ops_size: usize,
    pub filesystem_ops: *mut FilesystemOps,
    pub random_access_file_ops_abi: c_int,
    pub random_access_file_ops_api: c_int,
    pub random_access_file_ops_size: usize,
    pub random_access_file_ops: *mut RandomAccessFileOps,
    pub writable_file_ops_abi: c_int,
    pub writable_file_ops_api: c_int,
    pub writable_file_ops_size: usize,
    pub writable_file_ops: *mut WritableFileOps,
    pub memory_region_ops_abi: c_int,
    pub memory_region_ops_api: c_int,
    pub memory_region_ops_size: usize,
    pub memory_region_ops: *mut MemoryRegionOps,
}

#[repr(C)]
pub struct PluginInfo {
    pub num_schemes: usize,
    pub ops: *mut PluginOps,
    pub plugin_memory_allocate: Option<extern "C" fn(usize) -> *mut c_void>,
    pub plugin_memory_free: Option<extern "C" fn(*mut c_void)>,
}

/// Allocate memory that TensorFlow frees with `free`. Ends the process if there is none, as Rust's own allocations do.
pub extern "C" fn allocate(size: usize) -> *mut c_void {
    // SAFETY: any size may be requested.
    let memory = unsafe { libc::malloc(size.max(1)) };
    if memory.is_null() {
        std::process::abort();
    }
    memory
}

pub extern "C" fn free(memory: *mut c_void) {
    // SAFETY: TensorFlow passes a pointer from `allocate`, once.
    unsafe { libc::free(memory) }
}

/// Move `value` to memory that TensorFlow frees.
pub fn boxed<T>(value: T) -> *mut T {
    let memory = allocate(size_of::<T>()) as *mut T;
    // SAFETY: malloc's memory is large enough, and aligned for any of these tables.
    unsafe { memory.write(value) };
    memory
}

/// Copy `text` with a terminating zero to memory that TensorFlow frees.
pub fn c_string(text: &str) -> *mut c_char {
    let memory = allocate(text.len() + 1) as *mut u8;
    // SAFETY: the memory is one byte longer than the text.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), memory, text.len());
        *memory.add(text.len()) = 0;
    }
    memory as *mut c_char
}

/// Make an array of such texts, which TensorFlow frees as well; their number is passed separately.
pub fn c_strings(texts: &[String]) -> *mut *mut c_char {
    let memory = allocate(size_of::<*mut c_char>() * texts.len()) as *mut *mut c_char;
    for (index, text) in texts.iter().enumerate() {
        // SAFETY: the memory holds as many pointers.
        unsafe { memory.add(index).write(c_string(text)) };
    }
    memory
}
