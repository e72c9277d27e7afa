//! `stowfs stat`: an inode, and where its bytes are.

use super::args::StatArgs;
use super::{Exit, client, complain};
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result, xattr};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const EXTENTS: &std::ffi::CStr = c"user.stowfs.extents";

pub fn run(args: &StatArgs) -> Exit {
    match describe(&args.path) {
        Ok(value) if args.json => println!("{value:#}"),
        Ok(value) => print!("{}", as_text(&value)),
        Err(e) => return complain(&e),
    }
    Exit::Ok
}

fn describe(path: &Path) -> Result<Value> {
    client::refuse_url(path, None)?;
    let named = path.display().to_string();
    let meta = path.symlink_metadata().context(&named)?;
    let extents = if meta.is_file() {
        extents(path).context(&named)?
    } else {
        json!([])
    };
    Ok(json!({
        "path": named,
        "inode": meta.ino(),
        "mode": format!("{:o}", meta.mode()),
        "links": meta.nlink(),
        "uid": meta.uid(),
        "gid": meta.gid(),
        "size": meta.size(),
        "extents": extents,
    }))
}

fn extents(path: &Path) -> Result<Value> {
    let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
    let raw = xattr::get(path, EXTENTS).map_err(|e| match e.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => invalid("not a file in a stowfs mount".into()),
        _ => Error::from(e),
    })?;
    serde_json::from_slice(&raw).map_err(|e| invalid(format!("unreadable list of extents: {e}")))
}

fn as_text(value: &Value) -> String {
    let mut text = format!(
        "{}\ninode {}, {} bytes, mode {}, {} links, owner {}:{}\n",
        value["path"].as_str().unwrap_or_default(),
        value["inode"],
        value["size"],
        value["mode"].as_str().unwrap_or_default(),
        value["links"],
        value["uid"],
        value["gid"],
    );
    let extents = value["extents"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if extents.is_empty() {
        text.push_str("no extents\n");
        return text;
    }
    text.push_str("      offset       length  segment            at\n");
    for extent in extents {
        text.push_str(&format!(
            "{:>12} {:>12}  {:<18} {}\n",
            extent["offset"].as_u64().unwrap_or_default(),
            extent["length"].as_u64().unwrap_or_default(),
            extent["segment"].as_str().unwrap_or("(memory)"),
            extent["segment_offset"],
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_shows_each_extent() {
        let text = as_text(&json!({
            "path": "/m/a", "inode": 7, "mode": "100644", "links": 1, "uid": 0, "gid": 0, "size": 9,
            "extents": [{"offset": 0, "length": 9, "segment": "log/1/2", "segment_offset": 4096}],
        }));
        assert!(text.contains("/m/a\ninode 7, 9 bytes"), "{text}");
        assert!(
            text.lines()
                .any(|l| l.split_whitespace().eq(["0", "9", "log/1/2", "4096"]))
        );
    }

    #[test]
    fn a_file_elsewhere_is_not_ours() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let e = describe(file.path()).unwrap_err();
        assert!(
            e.to_string().contains("not a file in a stowfs mount"),
            "{e}"
        );
        assert!(
            describe(Path::new("/nonexistent/x"))
                .unwrap_err()
                .is(ErrorKind::NotFound)
        );
    }
}
