//! Tells systemd that the mount is ready (`Type=notify`).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

pub fn ready() {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(e) = send(&socket, b"READY=1")
    {
        tracing::warn!("cannot tell systemd that the mount is ready: {e}");
    }
}

/// A name that begins with `@` is an abstract one.
fn send(socket: &OsStr, message: &[u8]) -> std::io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(message, &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("stowfs-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (server, told) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&abstract_address).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            send(&told, b"READY=1").unwrap();
            let mut buffer = [0; 64];
            let n = server.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"READY=1");
        }
        assert!(send(OsStr::new("/nonexistent/x"), b"").is_err());
    }
}
