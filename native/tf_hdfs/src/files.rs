//! Open files, and whole files in memory, for TensorFlow's C interface.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{Handle, MemoryRegionOps, RandomAccessFileOps, TfStatus, WritableFileOps};
use crate::directory::location;
use crate::location::Location;
use crate::reader::Reader;
use crate::status::{Code, Outcome, failure, told};
use crate::writer::Writer;

pub const READERS: RandomAccessFileOps = RandomAccessFileOps { cleanup: drop_reader, read };
pub const WRITERS: WritableFileOps = WritableFileOps { cleanup: drop_writer, append, tell, flush: sync, sync, close };
pub const REGIONS: MemoryRegionOps = MemoryRegionOps { cleanup: drop_region, data, length };

pub extern "C" fn open_reader(_: *const Handle, path: *const c_char, file: *mut Handle, status: *mut TfStatus) {
    told(status, (), || {
        let reader = reader_of(&location(path))?;
        // SAFETY: TensorFlow's handle.
        unsafe { Handle::keep(file, reader) };
        Ok(())
    })
}

pub extern "C" fn open_writer(_: *const Handle, path: *const c_char, file: *mut Handle, status: *mut TfStatus) {
    open_to_write(path, file, status, false)
}

pub extern "C" fn open_appender(_: *const Handle, path: *const c_char, file: *mut Handle, status: *mut TfStatus) {
    open_to_write(path, file, status, true)
}

pub extern "C" fn open_region(_: *const Handle, path: *const c_char, region: *mut Handle, status: *mut TfStatus) {
    told(status, (), || {
        let bytes = whole(&location(path))?;
        // SAFETY: TensorFlow's handle.
        unsafe { Handle::keep(region, bytes) };
        Ok(())
    })
}

fn open_to_write(path: *const c_char, file: *mut Handle, status: *mut TfStatus, append: bool) {
    told(status, (), || {
        let writer = Writer::open(&location(path), append)?;
        // SAFETY: TensorFlow's handle.
        unsafe { Handle::keep(file, writer) };
        Ok(())
    })
}

fn reader_of(location: &Location) -> Outcome<Reader> {
    match Reader::open(location) {
        // The NameNode has no separate error class for it.
        Err(error) if error.message.contains("Path is not a file") => {
            failure(Code::FailedPrecondition, format!("{}: is a directory", location.url()))
        }
        outcome => outcome,
    }
}

/// Read the whole file. An empty one cannot be a region of memory: TensorFlow's own file systems refuse it as well.
fn whole(location: &Location) -> Outcome<Vec<u8>> {
    let reader = reader_of(location)?;
    let length = reader.length() as usize;
    if length == 0 {
        return failure(Code::InvalidArgument, format!("{}: is empty", location.url()));
    }
    let mut bytes = vec![0; length];
    match reader.read(0, &mut bytes)? {
        read if read == length => Ok(bytes),
        read => failure(Code::DataLoss, format!("{}: ends at {read} of {length} bytes", location.url())),
    }
}

extern "C" fn drop_reader(file: *mut Handle) {
    // SAFETY: TensorFlow's last call for this handle. A panic cannot be reported to any caller.
    let _ = catch_unwind(|| unsafe { drop(Handle::take::<Reader>(file)) });
}

/// TensorFlow needs the count also if the file ended early, which has a separate status.
extern "C" fn read(file: *const Handle, offset: u64, n: usize, buffer: *mut c_char, status: *mut TfStatus) -> i64 {
    let mut count = -1;
    told(status, (), || {
        // SAFETY: TensorFlow's handle and buffer.
        let (reader, out) = unsafe { (Handle::kept::<Reader>(file), bytes_of(buffer, n)) };
        let read = reader.read(offset, out)?;
        count = read as i64;
        if read < n { failure(Code::OutOfRange, "the end of the file") } else { Ok(()) }
    });
    count
}

/// # Safety `buffer` has `n` bytes without other references, and may be null where n is 0.
unsafe fn bytes_of<'a>(buffer: *mut c_char, n: usize) -> &'a mut [u8] {
    // SAFETY: see above.
    if n == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(buffer as *mut u8, n) } }
}

/// Close a file that is dropped without being closed, if possible: errors cannot be reported.
extern "C" fn drop_writer(file: *mut Handle) {
    // SAFETY: TensorFlow's last call for this handle.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe { Handle::take::<Writer>(file) }.close()));
}

extern "C" fn append(file: *const Handle, buffer: *const c_char, n: usize, status: *mut TfStatus) {
    // SAFETY: TensorFlow's handle and buffer; the bytes are only read.
    told(status, (), || unsafe { Handle::kept::<Writer>(file).append(bytes_of(buffer as *mut c_char, n)) })
}

extern "C" fn tell(file: *const Handle, status: *mut TfStatus) -> i64 {
    // SAFETY: TensorFlow's handle.
    told(status, -1, || Ok(unsafe { Handle::kept::<Writer>(file) }.tell()))
}

extern "C" fn sync(file: *const Handle, status: *mut TfStatus) {
    // SAFETY: TensorFlow's handle.
    told(status, (), || unsafe { Handle::kept::<Writer>(file) }.sync())
}

extern "C" fn close(file: *const Handle, status: *mut TfStatus) {
    // SAFETY: TensorFlow's handle.
    told(status, (), || unsafe { Handle::kept::<Writer>(file) }.close())
}

extern "C" fn drop_region(region: *mut Handle) {
    // SAFETY: TensorFlow's last call for this handle.
    let _ = catch_unwind(|| unsafe { drop(Handle::take::<Vec<u8>>(region)) });
}

extern "C" fn data(region: *const Handle) -> *const c_void {
    // SAFETY: TensorFlow's handle.
    unsafe { Handle::kept::<Vec<u8>>(region) }.as_ptr() as *const c_void
}

extern "C" fn length(region: *const Handle) -> u64 {
    // SAFETY: TensorFlow's handle.
    unsafe { Handle::kept::<Vec<u8>>(region) }.len() as u64
}
