//! Enough of HTTP to ask a daemon of this machine for JSON.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A daemon that is frozen accepts connections and says nothing.
const TIMEOUT: Duration = Duration::from_secs(2);

pub fn get(port: u16, path: &str) -> Result<Value, String> {
    ask(port, "GET", path, "")
}

pub fn post(port: u16, path: &str, body: &Value) -> Result<Value, String> {
    ask(port, "POST", path, &body.to_string())
}

pub fn patch(port: u16, path: &str) -> Result<Value, String> {
    ask(port, "PATCH", path, "")
}

fn ask(port: u16, method: &str, path: &str, body: &str) -> Result<Value, String> {
    let ask = || -> std::io::Result<String> {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = ask().map_err(|e| format!("{method} {path}: {e}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") || head.contains(" 202 ") => {
            serde_json::from_str(body).map_err(|e| format!("{method} {path}: {e}: {body}"))
        }
        _ => Err(format!("{method} {path}: unexpected answer: {answer}")),
    }
}
