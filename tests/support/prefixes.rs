//! A few files to which changes happen in order: after a crash some prefix of the changes has.

use bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub enum Op {
    /// Creates a file or replaces its bytes from `off` on.
    Write {
        name: String,
        off: u64,
        data: Bytes,
    },
    Rename {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
}

pub type Files = BTreeMap<String, Vec<u8>>;

fn step(files: &mut Files, op: &Op) {
    match op {
        Op::Write { name, off, data } => {
            let file = files.entry(name.clone()).or_default();
            let end = *off as usize + data.len();
            file.resize(file.len().max(end), 0);
            file[*off as usize..end].copy_from_slice(data);
        }
        Op::Rename { from, to } => {
            let file = files
                .remove(from)
                .expect("the workload renames what exists");
            files.insert(to.clone(), file);
        }
        Op::Unlink { name } => drop(files.remove(name)),
    }
}

/// What was done on top of a known state, and how much of it was acknowledged.
#[derive(Default)]
pub struct Model {
    start: Files,
    pub now: Files,
    pub ops: Vec<(u64, Op)>,
    pub acknowledged: u64,
}

impl Model {
    pub fn at(start: Files) -> Model {
        Model {
            now: start.clone(),
            start,
            ..Model::default()
        }
    }

    pub fn add(&mut self, pos: u64, op: Op) {
        step(&mut self.now, &op);
        self.ops.push((pos, op));
    }

    /// Whether `found` is the state after a prefix that holds all that was acknowledged.
    pub fn explains(&self, found: &Files) -> bool {
        let mut files = self.start.clone();
        for (pos, op) in &self.ops {
            if *pos > self.acknowledged && files == *found {
                return true;
            }
            step(&mut files, op);
        }
        files == *found
    }
}
