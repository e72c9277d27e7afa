//! `stowfs deleted` and `stowfs undelete`, and what a mount answers them.

use super::args::{DeletedArgs, UndeleteArgs};
use super::control::{Commands, ask};
use super::{Exit, admin, client, complain};
use crate::admin::{DeletedList, UndeleteOptions, Undeleted, deleted, undelete};
use crate::base::{Error, ErrorKind, Result};
use crate::volume::Volume;
use futures::FutureExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn add_commands(commands: &mut Commands, volume: &Arc<Volume>) {
    let listed = volume.clone();
    commands.add("deleted", move |request| {
        let volume = listed.clone();
        async move { value(deleted(&volume, request["path"].as_str())?) }.boxed()
    });
    let volume = volume.clone();
    commands.add("undelete", move |request| {
        let volume = volume.clone();
        async move {
            let text = |name: &str| request[name].as_str().map(str::to_string);
            let flag = |name: &str| request[name].as_bool().unwrap_or(false);
            let options = UndeleteOptions {
                path: text("path").unwrap_or_default(),
                id: request["id"].as_u64(),
                to: text("to"),
                into: flag("into"),
                partial: flag("partial"),
            };
            value(undelete(&volume, &options).await?)
        }
        .boxed()
    });
}

fn value(answer: impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(answer).map_err(|e| Error::new(ErrorKind::Other, e.to_string()))
}

pub fn run_deleted(args: &DeletedArgs) -> Exit {
    let done = request::<DeletedList>(&args.mountpoint, args.run_dir.as_deref(), |mount| {
        let path = args.path.as_ref().map(|p| within(mount, p)).transpose()?;
        Ok(json!({ "command": "deleted", "path": path }))
    });
    end(done.and_then(|list| admin::show(&list, args.json)))
}

pub fn run_undelete(args: &UndeleteArgs) -> Exit {
    let done = request::<Undeleted>(&args.mountpoint, args.run_dir.as_deref(), |mount| {
        Ok(json!({
            "command": "undelete",
            "path": within(mount, &args.path)?,
            "id": args.id,
            "to": args.to.as_ref().map(|p| within(mount, p)).transpose()?,
            "into": args.into,
            "partial": args.partial,
        }))
    });
    end(done.and_then(|undeleted| admin::show(&undeleted, args.json)))
}

fn end(done: Result<()>) -> Exit {
    match done {
        Ok(()) => Exit::Ok,
        Err(e) => complain(&e),
    }
}

fn request<T: DeserializeOwned>(
    mountpoint: &Path,
    run_dir: Option<&Path>,
    make: impl FnOnce(&Path) -> Result<Value>,
) -> Result<T> {
    let (found, files) = client::running(mountpoint, run_dir)?;
    let request = make(Path::new(&found.to_string()))?;
    let answer = ask(&files.socket(), &request, LIMIT)?;
    serde_json::from_value(answer)
        .map_err(|e| Error::new(ErrorKind::Other, format!("the mount's answer: {e}")))
}

/// A path in the mount: from its root on, or from that of the machine.
fn within<'a>(mount: &Path, path: &'a Path) -> Result<&'a str> {
    let inside = path.strip_prefix(mount).unwrap_or(path);
    inside.to_str().ok_or_else(|| {
        let text = format!(
            "{}: not UTF-8; bring back a directory above it",
            path.display()
        );
        Error::new(ErrorKind::Invalid, text)
    })
}
