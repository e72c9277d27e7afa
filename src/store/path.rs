//! Paths below the root of a store.

use super::StorePath;
use crate::base::{Error, ErrorKind, Result};

/// Refuses what is not a `StorePath`, so that no backend can be led out of its root.
pub fn check(path: &StorePath) -> Result<()> {
    let bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    if !path.is_empty() && path.split('/').any(bad) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{path:?} is not a path on the store"),
        ));
    }
    Ok(())
}

/// The parent and the last component; `None` for the root.
pub fn split(path: &StorePath) -> Option<(&StorePath, &str)> {
    match path.rsplit_once('/') {
        Some((parent, name)) => Some((parent, name)),
        None if path.is_empty() => None,
        None => Some(("", path)),
    }
}

pub fn join(dir: &StorePath, name: &str) -> String {
    if dir.is_empty() {
        name.to_string()
    } else {
        format!("{dir}/{name}")
    }
}

/// Whether `path` lies below `dir`.
pub fn is_below(path: &StorePath, dir: &StorePath) -> bool {
    dir.is_empty() && !path.is_empty()
        || path
            .strip_prefix(dir)
            .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cannot_leave_the_root() {
        for good in ["", "a", "a/b", ".stowfs/log", "a b/…"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0"] {
            assert!(check(bad).unwrap_err().is(ErrorKind::Invalid), "{bad}");
        }
    }

    #[test]
    fn parts() {
        assert_eq!(split(""), None);
        assert_eq!(split("a"), Some(("", "a")));
        assert_eq!(split("a/b/c"), Some(("a/b", "c")));
        assert_eq!((join("", "a"), join("a", "b")), ("a".into(), "a/b".into()));
        assert!(is_below("a/b", "a") && is_below("a", "") && !is_below("ab", "a"));
        assert!(!is_below("a", "a") && !is_below("", ""));
    }
}
