//! The control socket of a mount: one JSON object a line, `{"command": "status", …}`, answered by
//! one line, `{"ok": …}` or `{"error": "…", "kind": "…"}`. Before it there may be lines
//! `{"progress": …}`. Only the owner of the mount can connect.

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as ClientStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The longest request; an answer may be longer.
const REQUEST_MAX: u64 = 64 << 10;

/// While a command runs, its asker hears something at least this often.
const HEARTBEAT: Duration = Duration::from_secs(5);

pub type Reply = BoxFuture<'static, Result<Value>>;
type Handler = Box<dyn Fn(Value, Progress) -> Reply + Send + Sync>;

/// Tells whoever asked how far a command is.
#[derive(Clone)]
pub struct Progress(mpsc::UnboundedSender<Value>);

impl Progress {
    /// False: nobody listens any more.
    pub fn tell(&self, step: &impl Serialize) -> bool {
        let step = serde_json::to_value(step).unwrap_or_default();
        self.0.send(step).is_ok()
    }
}

/// What a mount answers. Each command gets the whole request.
#[derive(Default)]
pub struct Commands(BTreeMap<&'static str, Handler>);

impl Commands {
    pub fn add(
        &mut self,
        name: &'static str,
        handler: impl Fn(Value) -> Reply + Send + Sync + 'static,
    ) {
        self.add_long(name, move |request, _| handler(request));
    }

    /// A command that takes a while. It is not stopped when its asker goes away, but can see that.
    pub fn add_long(
        &mut self,
        name: &'static str,
        handler: impl Fn(Value, Progress) -> Reply + Send + Sync + 'static,
    ) {
        self.0.insert(name, Box::new(handler));
    }

    async fn answer(&self, line: &str, progress: Progress) -> Result<Value> {
        let request: Value = serde_json::from_str(line)
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("request is not JSON: {e}")))?;
        let name = request
            .get("command")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match self.0.get(name) {
            Some(handler) => handler(request, progress).await,
            None => {
                let known: Vec<&str> = self.0.keys().copied().collect();
                let known = known.join(", ");
                let text = format!("unknown command {name:?}; there are: {known}");
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// Answers on a socket until it is dropped, which removes the socket.
pub struct Server {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub fn start(path: PathBuf, commands: Commands) -> Result<Server> {
        let naming = format!("control socket {}", path.display());
        // The lock of the mount is held, so a socket that exists is a dead process's.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::from(e).context(naming));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).context(&naming)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).context(&naming)?;
        let task = tokio::spawn(listen(listener, Arc::new(commands)));
        Ok(Server { path, task })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::debug!("control socket {}: {e}", self.path.display());
        }
    }
}

async fn listen(listener: UnixListener, commands: Arc<Commands>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let commands = commands.clone();
                tokio::spawn(async move {
                    if let Err(e) = converse(stream, &commands).await {
                        tracing::debug!("control socket: {e}");
                    }
                });
            }
            Err(e) => {
                tracing::warn!("control socket: {e}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, commands: &Arc<Commands>) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = tokio::io::BufReader::new(reader);
    loop {
        let mut line = String::new();
        if (&mut reader).take(REQUEST_MAX).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let (progress, told) = mpsc::unbounded_channel();
        let commands = commands.clone();
        // A task of its own: an asker that goes away must not cut it off in the middle.
        let work = async move { commands.answer(&line, Progress(progress)).await };
        let Some(answer) = report(tokio::spawn(work), told, &mut reader, &mut writer).await? else {
            return Ok(());
        };
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(e) => json!({ "error": e.to_string(), "kind": format!("{:?}", e.kind()) }),
        };
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
}

/// Passes on the progress of a command until it ends. None: the asker is gone.
async fn report(
    mut work: JoinHandle<Result<Value>>,
    mut told: mpsc::UnboundedReceiver<Value>,
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<Option<Result<Value>>> {
    let mut silent = true;
    let ended = |e: tokio::task::JoinError| Error::new(ErrorKind::Other, format!("it died: {e}"));
    loop {
        let step = tokio::select! {
            biased;
            Some(step) = told.recv() => step,
            answer = &mut work => return Ok(Some(answer.map_err(ended).flatten())),
            more = reader.fill_buf(), if silent => {
                // A further request may wait; the end means that nobody listens.
                silent = false;
                if more?.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            () = tokio::time::sleep(HEARTBEAT) => Value::Null,
        };
        writer
            .write_all(format!("{}\n", json!({ "progress": step })).as_bytes())
            .await?;
    }
}

/// Asks the mount behind a socket.
pub fn ask(socket: &Path, request: &Value, limit: Duration) -> Result<Value> {
    ask_watching(socket, request, limit, &mut |_| {})
}

/// The same for a command that tells of its progress. `limit`: the longest silence.
pub fn ask_watching(
    socket: &Path,
    request: &Value,
    limit: Duration,
    watch: &mut dyn FnMut(&Value),
) -> Result<Value> {
    let naming = format!("control socket {}", socket.display());
    let broken = |why: &str| Error::new(ErrorKind::Other, format!("{naming}: {why}"));
    let connect = || -> std::io::Result<ClientStream> {
        let mut stream = ClientStream::connect(socket)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        Ok(stream)
    };
    for line in BufReader::new(connect().context(&naming)?).lines() {
        let line = line.context(&naming)?;
        let mut answer: Value = serde_json::from_str(&line).map_err(|e| broken(&e.to_string()))?;
        if let Some(step) = answer.get("progress") {
            watch(step);
            continue;
        }
        let fenced = answer["kind"] == format!("{:?}", ErrorKind::Fenced);
        return match answer.get("error").and_then(Value::as_str) {
            Some(text) if fenced => Err(Error::new(ErrorKind::Fenced, text)),
            Some(text) => Err(Error::new(ErrorKind::Other, text)),
            None => Ok(answer["ok"].take()),
        };
    }
    Err(broken("the mount ended before it answered"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn commands_are_answered_and_errors_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        std::fs::write(&socket, "stale").unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let mut commands = Commands::default();
        commands.add("echo", |request| {
            async move { Ok(request["text"].clone()) }.boxed()
        });
        commands.add("fail", |_| {
            async { Err(Error::new(ErrorKind::Other, "it did not work")) }.boxed()
        });
        let (stopped, seen) = std::sync::mpsc::channel();
        commands.add_long("count", move |request, progress| {
            let stopped = stopped.clone();
            async move {
                for n in 0..request["to"].as_u64().unwrap() {
                    if !progress.tell(&n) {
                        stopped.send(n).unwrap();
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(json!("counted"))
            }
            .boxed()
        });
        let server = Server::start(socket.clone(), commands).unwrap();
        assert_eq!(
            socket.metadata().unwrap().permissions().mode() & 0o777,
            0o600
        );

        let ask = |request: Value| ask(&socket, &request, Duration::from_secs(10));
        assert_eq!(
            ask(json!({"command": "echo", "text": "héllo"})).unwrap(),
            "héllo"
        );
        assert_eq!(
            ask(json!({"command": "fail"})).unwrap_err().to_string(),
            "it did not work"
        );
        let e = ask(json!({"command": "nope"})).unwrap_err().to_string();
        assert!(e.contains("nope") && e.contains("echo, fail"), "{e}");
        assert!(
            ask(json!([1]))
                .unwrap_err()
                .to_string()
                .contains("unknown command")
        );

        let limit = Duration::from_secs(10);
        let mut steps = Vec::new();
        let mut watch = |step: &Value| steps.push(step.clone());
        let request = json!({"command": "count", "to": 3});
        let answer = ask_watching(&socket, &request, limit, &mut watch).unwrap();
        assert_eq!(
            (answer, steps),
            (json!("counted"), vec![json!(0), json!(1), json!(2)])
        );
        // An asker that goes away in the middle.
        let request = json!({"command": "count", "to": 1_000_000});
        let mut client = ClientStream::connect(&socket).unwrap();
        client.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"progress\":0}\n");
        assert!(seen.recv_timeout(limit).is_ok());

        drop(server);
        assert!(!socket.exists());
    }
}
