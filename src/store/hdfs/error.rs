//! What the errors of HDFS mean: a kind for the program, and whether to ask again.

use crate::base::{Error, ErrorKind};
use hdfs_native::HdfsError;
use std::io;

/// What is known about a call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It was refused for now or never arrived; asking again is harmless whatever the call.
    NotDone,
    /// It may have been carried out.
    Unknown,
    /// It was refused for good.
    Refused,
}

pub(super) fn outcome(error: &HdfsError) -> Outcome {
    match error {
        HdfsError::IOError(e) => io_outcome(e),
        HdfsError::RPCError(class, _) | HdfsError::FatalRPCError(class, _) => {
            match short(class) {
                "StandbyException"
                | "SafeModeException"
                | "RetriableException"
                | "ObserverRetryOnActiveException"
                | "CallQueueOverflowException" => Outcome::NotDone,
                // The reader of answers failed in between; the class says nothing about the call.
                "FatalConnectionException" | "" => Outcome::Unknown,
                _ => Outcome::Refused,
            }
        }
        HdfsError::InvalidRPCResponse(_) => Outcome::Unknown,
        _ => Outcome::Refused,
    }
}

fn io_outcome(e: &io::Error) -> Outcome {
    use io::ErrorKind as Io;
    match e.kind() {
        Io::ConnectionRefused
        | Io::AddrNotAvailable
        | Io::HostUnreachable
        | Io::NetworkUnreachable
        | Io::NetworkDown => Outcome::NotDone,
        _ => Outcome::Unknown,
    }
}

impl From<HdfsError> for Error {
    fn from(e: HdfsError) -> Error {
        Error::new(kind(&e), text(&e))
    }
}

fn kind(error: &HdfsError) -> ErrorKind {
    match error {
        HdfsError::IOError(e) if e.kind() == io::ErrorKind::TimedOut => ErrorKind::TimedOut,
        HdfsError::IOError(_) | HdfsError::InvalidRPCResponse(_) => ErrorKind::Unavailable,
        HdfsError::DataTransferError(_) | HdfsError::OperationFailed(_) => {
            if text(error).contains("erasure-coded") {
                ErrorKind::Unsupported
            } else {
                ErrorKind::Unavailable
            }
        }
        HdfsError::BlocksNotFound(_) => ErrorKind::Unavailable,
        HdfsError::ChecksumError => ErrorKind::Corrupt,
        HdfsError::AlreadyExists(_) => ErrorKind::AlreadyExists,
        HdfsError::FileNotFound(_) => ErrorKind::NotFound,
        HdfsError::InvalidPath(_)
        | HdfsError::InvalidArgument(_)
        | HdfsError::UrlParseError(_)
        | HdfsError::XmlParseError(_)
        | HdfsError::IsADirectoryError(_) => ErrorKind::Invalid,
        HdfsError::UnsupportedFeature(_)
        | HdfsError::UnsupportedErasureCodingPolicy(_)
        | HdfsError::ErasureCodingError(_) => ErrorKind::Unsupported,
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => {
            ErrorKind::Denied
        }
        HdfsError::RPCError(class, message) | HdfsError::FatalRPCError(class, message) => {
            java_kind(short(class), message)
        }
        _ => ErrorKind::Other,
    }
}

fn java_kind(class: &str, message: &str) -> ErrorKind {
    match class {
        "FileNotFoundException" if message.contains("Path is not a file") => ErrorKind::Invalid,
        "FileNotFoundException" | "PathNotFoundException" | "ParentNotDirectoryException" => {
            ErrorKind::NotFound
        }
        "FileAlreadyExistsException" | "AlreadyBeingCreatedException" => ErrorKind::AlreadyExists,
        // How the NameNode answers for a path below a file.
        "AccessControlException" if message.contains("is not a directory)") => ErrorKind::NotFound,
        "AccessControlException"
        | "AuthorizationException"
        | "SaslException"
        | "GSSException"
        | "SecretManager$InvalidToken"
        | "AuthenticationException" => ErrorKind::Denied,
        "NSQuotaExceededException"
        | "DSQuotaExceededException"
        | "QuotaByStorageTypeExceededException"
        | "QuotaExceededException"
        | "FSLimitException$MaxDirectoryItemsExceededException" => ErrorKind::NoSpace,
        "PathIsNotEmptyDirectoryException"
        | "InvalidPathException"
        | "IllegalArgumentException"
        | "HadoopIllegalArgumentException" => ErrorKind::Invalid,
        "UnsupportedOperationException" | "UnsupportedActionException" => ErrorKind::Unsupported,
        "StandbyException"
        | "SafeModeException"
        | "RetriableException"
        | "ObserverRetryOnActiveException"
        | "CallQueueOverflowException"
        | "NotReplicatedYetException"
        | "FatalConnectionException"
        | "" => ErrorKind::Unavailable,
        "IOException" => io_exception_kind(message),
        _ => ErrorKind::Other,
    }
}

/// A plain IOException says what it means only in its text.
fn io_exception_kind(message: &str) -> ErrorKind {
    if message.contains("minReplication nodes") {
        // Nothing was excluded, so DataNodes that run and still were not chosen have no room (or
        // too much to do).
        if message.contains("There are 0 datanode(s) running") {
            ErrorKind::Unavailable
        } else {
            ErrorKind::NoSpace
        }
    } else if message.contains("erasure coding policy") {
        ErrorKind::Unsupported
    } else if message.contains("block size is less than") {
        ErrorKind::Invalid
    } else if message.contains("must both be directories") {
        // A rename onto a file by a directory, or the reverse.
        ErrorKind::AlreadyExists
    } else if message.contains("is a directory or file under source") {
        ErrorKind::Invalid
    } else {
        ErrorKind::Other
    }
}

/// One line: Java puts its stack trace into the message.
fn text(error: &HdfsError) -> String {
    match error {
        HdfsError::RPCError(class, message) | HdfsError::FatalRPCError(class, message) => {
            let line = message.lines().next().unwrap_or("").trim();
            format!("{}: {line}", short(class))
        }
        HdfsError::AlreadyExists(message) => {
            format!(
                "exists already: {}",
                message.lines().next().unwrap_or("").trim()
            )
        }
        // It goes on with all that is known of each DataNode.
        HdfsError::DataTransferError(message) if message.starts_with("All DataNodes failed") => {
            "no DataNode that holds the block answers".into()
        }
        e => e.to_string(),
    }
}

fn short(class: &str) -> &str {
    class.rsplit('.').next().unwrap_or(class)
}

/// The error of a call that was given up.
pub(super) fn timed_out(after: std::time::Duration) -> HdfsError {
    let text = format!("no answer within {after:?}");
    HdfsError::IOError(io::Error::new(io::ErrorKind::TimedOut, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn java(class: &str, message: &str) -> HdfsError {
        HdfsError::RPCError(class.into(), message.into())
    }

    #[test]
    fn classes_have_kinds() {
        let cases = [
            ("java.io.FileNotFoundException", ErrorKind::NotFound),
            (
                "org.apache.hadoop.fs.FileAlreadyExistsException",
                ErrorKind::AlreadyExists,
            ),
            (
                "org.apache.hadoop.security.AccessControlException",
                ErrorKind::Denied,
            ),
            (
                "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException",
                ErrorKind::NoSpace,
            ),
            (
                "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException",
                ErrorKind::NoSpace,
            ),
            (
                "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
                ErrorKind::Unavailable,
            ),
            (
                "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException",
                ErrorKind::Other,
            ),
        ];
        for (class, kind) in cases {
            let e = Error::from(java(class, "why\n\tat org.apache.Foo"));
            assert_eq!(e.kind(), kind, "{class}");
            assert_eq!(e.to_string(), format!("{}: why", short(class)));
        }
    }

    #[test]
    fn full_is_told_from_down() {
        let message = |n| {
            format!(
                "File /f could only be written to 0 of the 1 minReplication nodes. There are {n} \
                 datanode(s) running and no node(s) are excluded in this operation."
            )
        };
        let kind = |n| Error::from(java("java.io.IOException", &message(n))).kind();
        assert_eq!(kind(0), ErrorKind::Unavailable);
        assert_eq!(kind(3), ErrorKind::NoSpace);
    }

    #[test]
    fn only_what_was_not_done_is_said_so() {
        let io = |kind: io::ErrorKind| outcome(&HdfsError::IOError(kind.into()));
        assert_eq!(io(io::ErrorKind::ConnectionRefused), Outcome::NotDone);
        assert_eq!(io(io::ErrorKind::ConnectionAborted), Outcome::Unknown);
        assert_eq!(io(io::ErrorKind::TimedOut), Outcome::Unknown);
        let standby = java("org.apache.hadoop.ipc.StandbyException", "");
        assert_eq!(outcome(&standby), Outcome::NotDone);
        assert_eq!(outcome(&java("java.io.IOException", "")), Outcome::Refused);
    }
}
