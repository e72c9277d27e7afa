//! A record that is encoded row by row, for those who would not hold all of its rows.

use super::codec::Put;
use super::frame::{begin_record, end_record};
use super::row::Row;
use crate::base::{Epoch, Pos, SessionId};

/// A record of a snapshot under construction: it has no number, and vouches for nothing.
pub struct RecordBuilder {
    epoch: Epoch,
    out: Vec<u8>,
    rows: u32,
}

impl RecordBuilder {
    pub fn new(epoch: Epoch) -> RecordBuilder {
        RecordBuilder {
            epoch,
            out: Vec::new(),
            rows: 0,
        }
    }

    pub fn push(&mut self, row: &Row) {
        if self.out.is_empty() {
            begin_record(SessionId(self.epoch.0), 0, 0, &mut self.out);
            self.out.put_u32(0);
        }
        row.encode(&mut self.out);
        self.rows += 1;
    }

    /// Bytes of its frame so far; 0 if it has no rows.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The frame, for a position of a stream. Begins the next record.
    pub fn finish(&mut self, pos: Pos) -> Vec<u8> {
        let rows = std::mem::take(&mut self.rows);
        let mut out = Vec::with_capacity(self.out.len());
        std::mem::swap(&mut out, &mut self.out);
        if rows > 0 {
            end_record(rows, pos, self.epoch, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Ino;
    use crate::format::RecordFrame;

    #[test]
    fn it_makes_the_bytes_that_a_whole_record_makes() {
        let rows: Vec<Row> = (1..5).map(|n| Row::Free { ino: Ino(n) }).collect();
        let mut builder = RecordBuilder::new(Epoch(3));
        assert!(builder.finish(7).is_empty());
        for pos in [7, 1000] {
            rows.iter().for_each(|row| builder.push(row));
            let mut right = Vec::new();
            RecordFrame {
                session: SessionId(3),
                op: 0,
                durable: 0,
                rows: rows.clone(),
            }
            .encode(pos, Epoch(3), &mut right);
            assert_eq!(builder.len(), right.len());
            assert_eq!(builder.finish(pos), right);
            assert!(builder.is_empty());
        }
    }
}
