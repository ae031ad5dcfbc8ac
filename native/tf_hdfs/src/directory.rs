//! All operations on paths except reading and writing, for TensorFlow's C interface.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use hdfs_native::client::FileStatus;

use crate::abi::{FileStatistics, FilesystemOps, Handle, TfStatus, c_string, c_strings};
use crate::connection::connection;
use crate::files;
use crate::location::{Location, name};
use crate::pattern;
use crate::status::{Code, Outcome, failure, told};

const NEW_FOLDER: u32 = 0o755;

pub fn table() -> FilesystemOps {
    FilesystemOps {
        init,
        cleanup,
        new_random_access_file: Some(files::open_reader),
        new_writable_file: Some(files::open_writer),
        new_appendable_file: Some(files::open_appender),
        new_read_only_memory_region_from_file: Some(files::open_region),
        create_dir: Some(create_dir),
        recursively_create_dir: Some(recursively_create_dir),
        delete_file: Some(delete_file),
        delete_dir: Some(delete_dir),
        delete_recursively: Some(delete_recursively),
        rename_file: Some(rename_file),
        copy_file: None,
        path_exists: Some(path_exists),
        paths_exist: null_mut(),
        stat: Some(stat),
        is_directory: Some(is_directory),
        get_file_size: Some(get_file_size),
        translate_name: Some(translate_name),
        get_children: Some(get_children),
        get_matching_paths: Some(get_matching_paths),
        flush_caches: null_mut(),
        unused: [null_mut(); 11],
    }
}

/// Parse a path from TensorFlow.
pub fn location(path: *const c_char) -> Location {
    // SAFETY: TensorFlow's paths end in a zero.
    Location::of(&unsafe { CStr::from_ptr(path) }.to_string_lossy())
}

fn status_of(location: &Location) -> Outcome<FileStatus> {
    let connection = connection()?;
    connection.wait(&location.url(), connection.client(location)?.get_file_info(&location.path))
}

/// List the content of a folder; an error for a file, which HDFS itself lists as its own only child.
fn children(folder: &Location) -> Outcome<Vec<FileStatus>> {
    let connection = connection()?;
    let client = connection.client(folder)?;
    let found = connection.wait(&folder.url(), client.list_status(&folder.path, false))?;
    match found.as_slice() {
        [one] if !one.isdir && one.path == folder.path => not_a_directory(folder),
        _ => Ok(found),
    }
}

fn not_a_directory<T>(location: &Location) -> Outcome<T> {
    failure(Code::FailedPrecondition, format!("{}: is not a directory", location.url()))
}

fn is_a_directory<T>(location: &Location) -> Outcome<T> {
    failure(Code::FailedPrecondition, format!("{}: is a directory", location.url()))
}

fn delete(location: &Location, recursive: bool) -> Outcome<()> {
    let connection = connection()?;
    match connection.wait(&location.url(), connection.client(location)?.delete(&location.path, recursive))? {
        true => Ok(()),
        false => failure(Code::NotFound, format!("{}: there is no such path", location.url())),
    }
}

/// Nothing is started here: TensorFlow may have been imported in a process that forks its workers.
extern "C" fn init(filesystem: *mut Handle, status: *mut TfStatus) {
    told(status, (), || {
        // SAFETY: TensorFlow's handle.
        unsafe { (*filesystem).plugin = null_mut() };
        Ok(())
    })
}

extern "C" fn cleanup(_: *mut Handle) {}

extern "C" fn create_dir(_: *const Handle, path: *const c_char, status: *mut TfStatus) {
    told(status, (), || {
        let folder = location(path);
        match status_of(&folder) {
            Ok(_) => return failure(Code::AlreadyExists, format!("{}: is there already", folder.url())),
            Err(error) if error.code == Code::NotFound => {}
            Err(error) => return Err(error),
        }
        let connection = connection()?;
        connection.wait(&folder.url(), connection.client(&folder)?.mkdirs(&folder.path, NEW_FOLDER, false))
    })
}

extern "C" fn recursively_create_dir(_: *const Handle, path: *const c_char, status: *mut TfStatus) {
    told(status, (), || {
        let folder = location(path);
        let connection = connection()?;
        match connection.wait(&folder.url(), connection.client(&folder)?.mkdirs(&folder.path, NEW_FOLDER, true)) {
            Err(error) if error.code == Code::AlreadyExists => failure(Code::FailedPrecondition, error.message),
            outcome => outcome,
        }
    })
}

extern "C" fn delete_file(_: *const Handle, path: *const c_char, status: *mut TfStatus) {
    told(status, (), || {
        let file = location(path);
        if status_of(&file)?.isdir { is_a_directory(&file) } else { delete(&file, false) }
    })
}

extern "C" fn delete_dir(_: *const Handle, path: *const c_char, status: *mut TfStatus) {
    told(status, (), || {
        let folder = location(path);
        if status_of(&folder)?.isdir { delete(&folder, false) } else { not_a_directory(&folder) }
    })
}

/// All or nothing: on failure TensorFlow is informed that the path itself remains.
extern "C" fn delete_recursively(
    _: *const Handle,
    path: *const c_char,
    files_left: *mut u64,
    folders_left: *mut u64,
    status: *mut TfStatus,
) {
    let deleted = told(status, false, || delete(&location(path), true).map(|()| true));
    // SAFETY: TensorFlow's numbers.
    unsafe {
        *files_left = 0;
        *folders_left = u64::from(!deleted);
    }
}

extern "C" fn rename_file(_: *const Handle, from: *const c_char, to: *const c_char, status: *mut TfStatus) {
    told(status, (), || {
        let (from, to) = (location(from), location(to));
        if from.base != to.base {
            let text = format!("{} cannot become {}: that is on another file system", from.url(), to.url());
            return failure(Code::Unimplemented, text);
        }
        let connection = connection()?;
        let what = format!("{} to {}", from.url(), to.url());
        connection.wait(&what, connection.client(&from)?.rename(&from.path, &to.path, true))
    })
}

extern "C" fn path_exists(_: *const Handle, path: *const c_char, status: *mut TfStatus) {
    told(status, (), || status_of(&location(path)).map(|_| ()))
}

extern "C" fn stat(_: *const Handle, path: *const c_char, statistics: *mut FileStatistics, status: *mut TfStatus) {
    told(status, (), || {
        let found = status_of(&location(path))?;
        let told = FileStatistics {
            length: found.length as i64,
            mtime_nsec: found.modification_time as i64 * 1_000_000,
            is_directory: found.isdir,
        };
        // SAFETY: TensorFlow's record.
        unsafe { *statistics = told };
        Ok(())
    })
}

/// TensorFlow uses only the status.
extern "C" fn is_directory(_: *const Handle, path: *const c_char, status: *mut TfStatus) -> bool {
    told(status, false, || {
        let folder = location(path);
        if status_of(&folder)?.isdir { Ok(true) } else { not_a_directory(&folder) }
    })
}

extern "C" fn get_file_size(_: *const Handle, path: *const c_char, status: *mut TfStatus) -> i64 {
    told(status, -1, || {
        let file = location(path);
        let found = status_of(&file)?;
        if found.isdir { is_a_directory(&file) } else { Ok(found.length as i64) }
    })
}

/// Return the path with scheme and authority: without this function TensorFlow drops the host.
extern "C" fn translate_name(_: *const Handle, url: *const c_char) -> *mut c_char {
    c_string(&location(url).url())
}

extern "C" fn get_children(
    _: *const Handle,
    path: *const c_char,
    entries: *mut *mut *mut c_char,
    status: *mut TfStatus,
) -> c_int {
    told(status, -1, || {
        let names = children(&location(path))?.iter().map(|child| name(&child.path).to_string()).collect();
        Ok(give(entries, names))
    })
}

/// The pattern is as the user wrote it, without `translate_name`.
extern "C" fn get_matching_paths(
    _: *const Handle,
    pattern: *const c_char,
    entries: *mut *mut *mut c_char,
    status: *mut TfStatus,
) -> c_int {
    told(status, -1, || {
        let found = matching(&location(pattern))?;
        Ok(give(entries, found.iter().map(Location::url).collect()))
    })
}

fn give(entries: *mut *mut *mut c_char, texts: Vec<String>) -> c_int {
    // SAFETY: TensorFlow's pointer, which it frees with what it points to.
    unsafe { *entries = c_strings(&texts) };
    texts.len() as c_int
}

/// Return all paths that match a pattern; one listing for each folder that can contain some.
fn matching(wanted: &Location) -> Outcome<Vec<Location>> {
    let mut found = vec![Location { base: wanted.base.clone(), path: "/".into() }];
    let parts: Vec<&str> = wanted.path.split('/').filter(|part| !part.is_empty()).collect();
    for (index, part) in parts.iter().enumerate() {
        let last = index + 1 == parts.len();
        let mut next = Vec::new();
        for folder in found {
            next.extend(fitting(&folder, part, last)?);
        }
        found = next;
    }
    Ok(found)
}

/// Return the children of a folder that match `part`: folders only, unless it is the last part. A missing folder has
/// none.
fn fitting(folder: &Location, part: &str, last: bool) -> Outcome<Vec<Location>> {
    if !pattern::is_pattern(part) {
        let one = folder.child(part);
        return match last.then(|| status_of(&one)) {
            None | Some(Ok(_)) => Ok(vec![one]), // not the last part: listing it will show whether it exists
            Some(Err(error)) if error.code == Code::NotFound => Ok(vec![]),
            Some(Err(error)) => Err(error),
        };
    }
    match children(folder) {
        Ok(all) => Ok(all
            .iter()
            .filter(|child| (last || child.isdir) && pattern::fits(part, name(&child.path)))
            .map(|child| folder.child(name(&child.path)))
            .collect()),
        // An unreadable folder among others does not hide the rest.
        Err(error) if matches!(error.code, Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied) => {
            Ok(vec![])
        }
        Err(error) => Err(error),
    }
}
