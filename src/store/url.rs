//! Store URLs.

use crate::base::{Error, ErrorKind, Result};
use std::path::PathBuf;

/// A store URL, taken apart. Paths are taken literally: `%20` is three characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `file:///dir`
    File(PathBuf),
    /// `hdfs://host:port/dir` or `hdfs://nameservice/dir`; without an authority, the default
    /// filesystem of the Hadoop configuration.
    Hdfs {
        authority: Option<String>,
        dir: String,
    },
}

impl StoreUrl {
    pub fn parse(url: &str) -> Result<StoreUrl> {
        parse(url).map_err(|why| {
            let text = format!(
                "{url:?} is not a store: {why} (a store is file:///dir, hdfs://host:port/dir or \
                 hdfs://nameservice/dir)"
            );
            Error::new(ErrorKind::Usage, text)
        })
    }
}

fn parse(url: &str) -> Result<StoreUrl, String> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(match url.starts_with('/') {
            true => format!("it has no scheme; did you mean file://{url}?"),
            false => "it has no scheme".into(),
        });
    };
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    match scheme {
        "file" if !matches!(authority, "" | "localhost") => Err(format!(
            "a file URL has three slashes; did you mean file:///{authority}{path}?"
        )),
        "file" => Ok(StoreUrl::File(directory(path)?.into())),
        "hdfs" => Ok(StoreUrl::Hdfs {
            authority: check_authority(authority)?,
            dir: directory(path)?,
        }),
        other => Err(format!("the scheme {other:?} is not supported")),
    }
}

/// An absolute path without empty parts.
fn directory(path: &str) -> Result<String, String> {
    if !path.starts_with('/') {
        return Err("it names no directory".into());
    }
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    match parts
        .iter()
        .find(|p| matches!(**p, "." | "..") || p.contains('\0'))
    {
        Some(part) => Err(format!("its path contains {part:?}")),
        None => Ok(format!("/{}", parts.join("/"))),
    }
}

fn check_authority(authority: &str) -> Result<Option<String>, String> {
    if authority.is_empty() {
        return Ok(None);
    }
    if authority.contains('@') {
        return Err("a user name does not belong there; HADOOP_USER_NAME sets it".into());
    }
    let after_host = authority
        .rsplit_once(']')
        .map_or(authority, |(_, after)| after);
    match after_host.split_once(':') {
        Some(("", _)) if !authority.contains(']') => Err("it names no host".into()),
        Some((_, port)) if port.parse::<u16>().is_err() => {
            Err(format!("{port:?} is not a port number"))
        }
        _ => Ok(Some(authority.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hdfs(authority: Option<&str>, dir: &str) -> StoreUrl {
        StoreUrl::Hdfs {
            authority: authority.map(Into::into),
            dir: dir.into(),
        }
    }

    #[test]
    fn good_urls() {
        let cases = [
            ("file:///a/b", StoreUrl::File("/a/b".into())),
            ("file:/a/b/", StoreUrl::File("/a/b".into())),
            ("file://localhost/a%20b", StoreUrl::File("/a%20b".into())),
            ("hdfs://nn:8020/a//b/", hdfs(Some("nn:8020"), "/a/b")),
            ("hdfs://ns1/a", hdfs(Some("ns1"), "/a")),
            ("hdfs://[::1]:9000/a", hdfs(Some("[::1]:9000"), "/a")),
            ("hdfs://ns1/", hdfs(Some("ns1"), "/")),
            ("hdfs:///a b", hdfs(None, "/a b")),
        ];
        for (url, parsed) in cases {
            assert_eq!(StoreUrl::parse(url).unwrap(), parsed, "{url}");
        }
    }

    #[test]
    fn bad_urls_say_why() {
        let cases = [
            ("/a/b", "did you mean file:///a/b?"),
            ("dir", "no scheme"),
            ("file://a/b", "did you mean file:///a/b?"),
            ("file:a", "names no directory"),
            ("s3://bucket/a", "\"s3\" is not supported"),
            ("hdfs://nn:8020", "names no directory"),
            ("hdfs://nn:port/a", "\"port\" is not a port"),
            ("hdfs://nn:99999/a", "\"99999\" is not a port"),
            ("hdfs://:8020/a", "names no host"),
            ("hdfs://me@nn:8020/a", "HADOOP_USER_NAME"),
            ("hdfs://nn:8020/a/../b", "\"..\""),
            ("file:///a/./b", "\".\""),
        ];
        for (url, why) in cases {
            let e = StoreUrl::parse(url).unwrap_err();
            assert!(
                e.is(ErrorKind::Usage) && e.to_string().contains(why),
                "{url}: {e}"
            );
        }
    }
}
