//! Errors: TensorFlow's codes, the conversion of HDFS's errors, and reporting to TensorFlow.

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use hdfs_native::HdfsError;

use crate::abi::TfStatus;

/// The codes of TensorFlow's `tf_status.h`; each becomes an exception of `tf.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok = 0,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failure>;

pub fn failure<T>(code: Code, message: impl Into<String>) -> Outcome<T> {
    Err(Failure { code, message: message.into() })
}

impl Failure {
    /// Convert an error of HDFS at `url`; of a Java error only its first line, not its stack.
    pub fn of_hdfs(url: &str, error: &HdfsError) -> Failure {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Failure { code: code_of(error), message: format!("{url}: {first}") }
    }
}

fn code_of(error: &HdfsError) -> Code {
    match error {
        HdfsError::FileNotFound(_) => Code::NotFound,
        HdfsError::AlreadyExists(_) => Code::AlreadyExists,
        HdfsError::IsADirectoryError(_) => Code::FailedPrecondition,
        HdfsError::InvalidPath(_) | HdfsError::InvalidArgument(_) | HdfsError::UrlParseError(_) => {
            Code::InvalidArgument
        }
        HdfsError::IOError(_) | HdfsError::DataTransferError(_) | HdfsError::BlocksNotFound(_) => Code::Unavailable,
        HdfsError::ChecksumError | HdfsError::ErasureCodingError(_) => Code::DataLoss,
        HdfsError::UnsupportedFeature(_) | HdfsError::UnsupportedErasureCodingPolicy(_) => Code::Unimplemented,
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => Code::Unauthenticated,
        HdfsError::RPCError(class, _) | HdfsError::FatalRPCError(class, _) => code_of_class(class),
        _ => Code::Unknown,
    }
}

/// Return the code for a NameNode's Java class of error, such as `org.apache.hadoop.ipc.RetriableException`.
fn code_of_class(class: &str) -> Code {
    match class.rsplit(['.', '$']).next().unwrap_or_default() {
        "FileNotFoundException" | "PathNotFoundException" => Code::NotFound,
        "FileAlreadyExistsException" => Code::AlreadyExists,
        "AlreadyBeingCreatedException" | "RecoveryInProgressException" | "LeaseExpiredException" => Code::Aborted,
        "AccessControlException" | "AuthorizationException" => Code::PermissionDenied,
        "SafeModeException" | "StandbyException" | "RetriableException" | "ServerTooBusyException" => Code::Unavailable,
        "PathIsNotEmptyDirectoryException" | "ParentNotDirectoryException" | "PathIsNotDirectoryException" => {
            Code::FailedPrecondition
        }
        "NSQuotaExceededException" | "DSQuotaExceededException" | "QuotaByStorageTypeExceededException" => {
            Code::ResourceExhausted
        }
        "InvalidPathException" | "HadoopIllegalArgumentException" | "IllegalArgumentException" => Code::InvalidArgument,
        "InvalidToken" | "SaslException" => Code::Unauthenticated,
        "UnsupportedOperationException" => Code::Unimplemented,
        _ => Code::Unknown,
    }
}

/// Report the outcome of `step` to TensorFlow; return `otherwise` on failure. A panic is reported as well: one that
/// reached C++ would end the process.
pub fn told<T>(status: *mut TfStatus, otherwise: T, step: impl FnOnce() -> Outcome<T>) -> T {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(value)) => {
            tell(status, Code::Ok, "");
            value
        }
        Ok(Err(failure)) => {
            tell(status, failure.code, &failure.message);
            otherwise
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            tell(status, Code::Internal, &format!("a defect of the hdfs:// plugin: {}", text.unwrap_or_default()));
            otherwise
        }
    }
}

type SetStatus = unsafe extern "C" fn(*mut TfStatus, c_int, *const c_char);
static SET_STATUS: OnceLock<Option<SetStatus>> = OnceLock::new();

/// Return whether errors can be reported: the one required function of TensorFlow was found in this process.
pub fn can_tell() -> bool {
    SET_STATUS.get_or_init(found).is_some()
}

fn tell(status: *mut TfStatus, code: Code, message: &str) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    if let Some(set) = SET_STATUS.get_or_init(found) {
        // SAFETY: TensorFlow's own function and status; it copies the text.
        unsafe { set(status, code as c_int, text.as_ptr()) }
    }
}

/// Find `TF_SetStatus` in a library that is loaded already: TensorFlow's symbols are not among the process's.
fn found() -> Option<SetStatus> {
    let libraries = [c"libtensorflow_framework.so.2", c"libtensorflow_framework.so.3", c"libtensorflow_cc.so.2"];
    // SAFETY: nothing is loaded (RTLD_NOLOAD), and the symbol is the function of that name and type.
    unsafe {
        let loaded = libraries.map(|name| libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD));
        let handles = loaded.into_iter().filter(|handle| !handle.is_null()).chain([libc::RTLD_DEFAULT]);
        handles
            .map(|handle| libc::dlsym(handle, c"TF_SetStatus".as_ptr()))
            .find(|symbol| !symbol.is_null())
            .map(|symbol| std::mem::transmute::<*mut c_void, SetStatus>(symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_cause() {
        let java = |class: &str| HdfsError::RPCError(class.into(), "text\n\tat a stack".into());
        for (error, code) in [
            (HdfsError::FileNotFound("f".into()), Code::NotFound),
            (HdfsError::ChecksumError, Code::DataLoss),
            (HdfsError::NoSASLMechanism, Code::Unauthenticated),
            (HdfsError::IOError(std::io::ErrorKind::ConnectionRefused.into()), Code::Unavailable),
            (java("org.apache.hadoop.security.AccessControlException"), Code::PermissionDenied),
            (java("org.apache.hadoop.hdfs.server.namenode.SafeModeException"), Code::Unavailable),
            (java("org.apache.hadoop.security.token.SecretManager$InvalidToken"), Code::Unauthenticated),
            (java("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"), Code::ResourceExhausted),
            (java("com.example.Surprise"), Code::Unknown),
        ] {
            assert_eq!(Failure::of_hdfs("hdfs://n/f", &error).code, code, "{error}");
        }
    }

    #[test]
    fn a_message_names_the_url_and_no_stack() {
        let error = HdfsError::RPCError("SafeModeException".into(), "Name node is in safe mode.\n\tat java".into());
        let message = Failure::of_hdfs("hdfs://n/f", &error).message;
        assert!(message.starts_with("hdfs://n/f: ") && message.ends_with("safe mode."), "{message}");
    }
}
