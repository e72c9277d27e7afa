//! Ports for daemons.

use rand::Rng;
use std::net::TcpListener;

/// Free ports of 127.0.0.1, all different. They are below the range from which the kernel takes
/// ports for outgoing connections, so that a daemon finds its port free again when it restarts.
pub fn free(n: usize) -> Vec<u16> {
    let mut rng = rand::rng();
    let mut held: Vec<TcpListener> = Vec::new();
    while held.len() < n {
        if let Ok(l) = TcpListener::bind(("127.0.0.1", rng.random_range(10_000..32_000))) {
            held.push(l);
        }
    }
    held.iter()
        .map(|l| l.local_addr().unwrap().port())
        .collect()
}
