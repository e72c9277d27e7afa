//! The control socket of a mount: one JSON object a line, `{"command": "status", …}`, answered by
//! one line, `{"ok": …}` or `{"error": "…"}`. Only the owner of the mount can connect.

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as ClientStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The longest request; an answer may be longer.
const REQUEST_MAX: u64 = 64 << 10;

pub type Reply = BoxFuture<'static, Result<Value>>;
type Handler = Box<dyn Fn(Value) -> Reply + Send + Sync>;

/// What a mount answers. Each command gets the whole request.
#[derive(Default)]
pub struct Commands(BTreeMap<&'static str, Handler>);

impl Commands {
    pub fn add(
        &mut self,
        name: &'static str,
        handler: impl Fn(Value) -> Reply + Send + Sync + 'static,
    ) {
        self.0.insert(name, Box::new(handler));
    }

    async fn answer(&self, line: &str) -> Result<Value> {
        let request: Value = serde_json::from_str(line)
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("request is not JSON: {e}")))?;
        let name = request
            .get("command")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match self.0.get(name) {
            Some(handler) => handler(request).await,
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

async fn converse(stream: UnixStream, commands: &Commands) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = tokio::io::BufReader::new(reader);
    loop {
        let mut line = String::new();
        if (&mut reader).take(REQUEST_MAX).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let answer = match commands.answer(&line).await {
            Ok(value) => json!({ "ok": value }),
            Err(e) => json!({ "error": e.to_string() }),
        };
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
}

/// Asks the mount behind a socket.
pub fn ask(socket: &Path, request: &Value, limit: Duration) -> Result<Value> {
    let naming = format!("control socket {}", socket.display());
    let exchange = || -> std::io::Result<String> {
        let mut stream = ClientStream::connect(socket)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = exchange().context(&naming)?;
    let mut answer: Value = serde_json::from_str(&line)
        .map_err(|e| Error::new(ErrorKind::Other, format!("{naming}: {e}")))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(text) => Err(Error::new(ErrorKind::Other, text)),
        None => Ok(answer["ok"].take()),
    }
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

        drop(server);
        assert!(!socket.exists());
    }
}
