//! Writes the log that begins anew: one segment, under another name until it is whole.

use crate::base::error::Context;
use crate::base::{Epoch, Pos, Result, SegmentName, SessionId, StreamId, Timestamp};
use crate::format::segment::{Footer, SegmentHeader};
use crate::format::{Origin, RecordFrame, Row};
use crate::segment;
use crate::store::Store;

/// Bytes of a record after which the next one begins.
const RECORD_BYTES: usize = 1 << 20;

pub(super) struct Header {
    pub root: [u8; 16],
    pub epoch: Epoch,
    pub session: SessionId,
    pub base: Pos,
    pub created: Timestamp,
}

/// The directory of the epoch is renamed when a higher one begins, so a fenced rebuild can publish
/// nothing. Returns where the log ends now.
pub(super) async fn publish(store: &dyn Store, header: &Header, rows: &[Row]) -> Result<Pos> {
    let name = SegmentName::Log {
        epoch: header.epoch,
        n: 0,
    };
    let path = segment::path(&name, header.epoch);
    let draft = format!("{path}.rebuilding");
    let writing = format!("writing {draft}");
    let mut writer = store.create(&draft).await.context(&writing)?;
    let head = SegmentHeader {
        root: header.root,
        name,
        stream: StreamId::LOG,
        epoch: header.epoch,
        session: header.session,
        base: header.base,
        durable: header.base,
        predecessor: None,
        created: header.created,
        origin: Origin {
            epoch: header.epoch,
            pos: header.base,
        },
    };
    writer
        .append(head.encode().into())
        .await
        .context(&writing)?;
    let mut at = header.base;
    for (op, rows) in batches(rows).enumerate() {
        let record = RecordFrame {
            session: header.session,
            op: op as u64,
            durable: header.base,
            rows: rows.to_vec(),
        };
        let mut bytes = Vec::new();
        record.encode(at, header.epoch, &mut bytes);
        at += bytes.len() as u64;
        writer.append(bytes.into()).await.context(&writing)?;
    }
    let footer = Footer::new(StreamId::LOG, header.base, at, &[]);
    writer
        .append(footer.encode().into())
        .await
        .context(&writing)?;
    writer.close().await.context(&writing)?;
    store
        .rename(&draft, &path)
        .await
        .context(format_args!("publishing {path}"))?;
    Ok(at)
}

/// Cuts rows into runs of about a record's size.
fn batches(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    let mut rest = rows;
    let mut scratch = Vec::new();
    std::iter::from_fn(move || {
        scratch.clear();
        let mut n = 0;
        while n < rest.len() && scratch.len() < RECORD_BYTES {
            rest[n].encode(&mut scratch);
            n += 1;
        }
        let (batch, more) = rest.split_at(n);
        rest = more;
        (!batch.is_empty()).then_some(batch)
    })
}
