//! Random calls on the memory store and on a local one must come out alike: what simulations prove
//! on the one then means something for the other.

use stowfs::base::{ErrorKind, Random, Result};
use stowfs::store::Store;
use stowfs::store::local::LocalStore;
use stowfs::store::memory::MemoryCluster;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn path(random: &mut Random) -> String {
    let mut name = || NAMES[random.below(4) as usize];
    let parts = [name(), name(), name()];
    parts[..1 + random.below(3) as usize].join("/")
}

/// Makes the `n`-th kind of call; returns what can be seen of its result.
async fn call(store: &dyn Store, n: u64, p: &str, q: &str) -> Result<String> {
    let content = format!("{p} {q}");
    Ok(match n {
        0 => format!("{:?}", store.mkdir(p).await?),
        1 | 2 => format!("{:?}", store.put(p, content.into()).await?),
        3 => {
            let mut writer = store.create(p).await?;
            writer.append(content.into()).await?;
            format!("{:?}", writer.close().await?)
        }
        4 | 5 => format!("{:?}", store.rename(p, q).await?),
        6 => format!("{:?}", store.delete(p).await?),
        7 => {
            let info = store.stat(p).await?;
            format!("{} {} {}", info.name, info.is_dir, info.len)
        }
        8 => {
            let infos = store.list(p).await?;
            infos
                .iter()
                .map(|info| format!("{} {} {}, ", info.name, info.is_dir, info.len))
                .collect()
        }
        9 => format!("{:?}", store.recover(p).await?),
        _ => {
            let reader = store.open(p).await?;
            format!("{:?}", reader.read_at(0, reader.len() as usize).await?)
        }
    })
}

async fn compare(seed: u64) {
    let random = &mut Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let local = LocalStore::new("file:///test", dir.path());
    let memory = MemoryCluster::new(seed).host("a");
    let mut done = 0;
    for step in 0..150 {
        let (n, p, q) = (random.below(11), path(random), path(random));
        let by_memory = call(&*memory, n, &p, &q).await.map_err(|e| e.kind());
        let by_local = call(&local, n, &p, &q).await.map_err(|e| e.kind());
        assert_eq!(
            by_memory, by_local,
            "seed {seed}, step {step}: call {n} of {p:?}, {q:?}"
        );
        assert_ne!(
            by_memory,
            Err(ErrorKind::Other),
            "call {n} of {p:?}, {q:?}: say what it is"
        );
        done += u64::from(by_memory.is_ok());
    }
    assert!(done > 15, "seed {seed} did too little");
}

#[tokio::test(start_paused = true)]
async fn memory_and_local_agree() {
    let seeds = match std::env::var("STORE_SEED") {
        Ok(seed) => vec![seed.parse().expect("STORE_SEED is a number")],
        Err(_) => (0..40).collect(),
    };
    for seed in seeds {
        compare(seed).await;
    }
}
