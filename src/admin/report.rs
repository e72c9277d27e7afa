//! What `fsck` found.

use super::shown;
use serde::Serialize;
use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file on the store; empty if the problem is in none.
    pub path: String,
    /// Where in it, in bytes.
    pub offset: Option<u64>,
    /// The file in the mount that cannot be read because of it.
    pub file: Option<String>,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            f.write_str(&shown(&self.path))?;
            if let Some(offset) = self.offset {
                write!(f, " at offset {offset}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&shown(&self.what))?;
        match &self.file {
            Some(file) => write!(f, "; this damages {}", shown(file)),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub problems: Vec<Problem>,
    /// Things to know that are not wrong.
    pub notes: Vec<String>,
    pub inodes: u64,
    pub records: u64,
    pub segments: u64,
    /// Extents whose bytes were verified.
    pub extents: u64,
    /// Bytes in them.
    pub bytes: u64,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    pub(super) fn problem(&mut self, path: &str, offset: Option<u64>, what: impl Into<String>) {
        self.problems.push(Problem {
            path: path.to_string(),
            offset,
            file: None,
            what: what.into(),
        });
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(super) fn merge(&mut self, other: Report) {
        self.problems.extend(other.problems);
        self.notes.extend(other.notes);
        self.inodes += other.inodes;
        self.records += other.records;
        self.segments += other.segments;
        self.extents += other.extents;
        self.bytes += other.bytes;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {}", shown(note))?;
        }
        write!(
            f,
            "{} inodes, {} records, {} segments; {} extents with {} bytes verified: ",
            self.inodes, self.records, self.segments, self.extents, self.bytes
        )?;
        match self.problems.len() {
            0 => f.write_str("clean"),
            n => write!(f, "{n} problems"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with a line break made a line of its own, which looked like another finding.
    #[test]
    fn a_problem_is_one_line_whatever_the_name() {
        let problem = Problem {
            path: "data/1/0.seg".into(),
            offset: Some(128),
            file: Some("/a\nnote: all is well\u{1b}[2J".into()),
            what: "it is cut".into(),
        };
        let text = problem.to_string();
        assert!(
            text.ends_with(r"; this damages /a\nnote: all is well\u{1b}[2J"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }
}
