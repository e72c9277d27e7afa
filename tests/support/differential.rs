//! The same random calls on two stores must come out alike.

use stowfs::base::{ErrorKind, Random, Result};
use stowfs::store::Store;

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

/// Both stores must be empty. Panics at the first difference.
pub async fn compare(seed: u64, steps: u32, one: &dyn Store, other: &dyn Store) {
    let random = &mut Random::new(seed);
    let mut done = 0;
    for step in 0..steps {
        let (n, p, q) = (random.below(11), path(random), path(random));
        let by_one = call(one, n, &p, &q).await;
        let by_other = call(other, n, &p, &q).await;
        let kind = |result: &Result<String>| result.clone().map_err(|e| e.kind());
        assert_eq!(
            kind(&by_one),
            kind(&by_other),
            "seed {seed}, step {step}: call {n} of {p:?}, {q:?}: {by_one:?} and {by_other:?}"
        );
        assert_ne!(
            kind(&by_one),
            Err(ErrorKind::Other),
            "call {n} of {p:?}, {q:?}: say what it is"
        );
        done += u32::from(by_one.is_ok());
    }
    assert!(done > steps / 10, "seed {seed} did too little");
}
