//! Runs a simulation for many seeds, each on a runtime of its own with simulated time. A failing
//! seed is printed; `STOWFS_SEED` replays it. `STOWFS_SEEDS` sets how many are run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

pub fn each<F: Future<Output = ()>>(what: &str, default: u64, mut run: impl FnMut(u64) -> F) {
    let seeds = match number("STOWFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STOWFS_SEEDS").unwrap_or(default),
    };
    // With STOWFS_LOG=debug a replayed seed tells what it does.
    if let Ok(filter) = std::env::var("STOWFS_LOG") {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .try_init();
    }
    for seed in seeds {
        let once = AssertUnwindSafe(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(run(seed));
        });
        if let Err(panic) = catch_unwind(once) {
            eprintln!("{what}: seed {seed} failed; STOWFS_SEED={seed} replays it");
            resume_unwind(panic);
        }
    }
}
