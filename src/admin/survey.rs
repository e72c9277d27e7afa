//! Which files a root has on the store.

use crate::base::error::Context;
use crate::base::{ErrorKind, Result, SegmentName, Timestamp};
use crate::log;
use crate::segment::{self, DATA_DIR, LOG_DIR};
use crate::store::{FileInfo, Store};

#[derive(Clone, Debug)]
pub(super) struct Found {
    pub name: SegmentName,
    pub path: String,
    pub size: u64,
}

impl Found {
    /// The epoch of the log, or the session of a lane, which has the number of its epoch.
    pub fn epoch(&self) -> u32 {
        match self.name {
            SegmentName::Log { epoch, .. } => epoch.0,
            SegmentName::Lane { session, .. } => session.0,
        }
    }

    pub fn is_log(&self) -> bool {
        matches!(self.name, SegmentName::Log { .. })
    }
}

#[derive(Default)]
pub(super) struct Survey {
    /// Every segment file, by name.
    pub segments: Vec<Found>,
    /// Paths of files and directories that stowfs does not make.
    pub strange: Vec<String>,
    /// Directories that every root has and this one has not.
    pub missing: Vec<&'static str>,
}

pub(super) async fn survey(store: &dyn Store) -> Result<Survey> {
    let mut survey = Survey::default();
    for dir in survey.list(store, LOG_DIR).await? {
        let path = format!("{LOG_DIR}/{}", dir.name);
        match segment::parse_log_dir(&dir.name).filter(|_| dir.is_dir) {
            Some((epoch, _)) => {
                let name = |n| SegmentName::Log { epoch, n };
                survey.segments_in(store, &path, name).await?;
            }
            None => survey.strange.push(path),
        }
    }
    for dir in survey.list(store, DATA_DIR).await? {
        let path = format!("{DATA_DIR}/{}", dir.name);
        match segment::parse_data_dir(&dir.name).filter(|_| dir.is_dir) {
            Some(session) => {
                let name = |n| SegmentName::Lane { session, n };
                survey.segments_in(store, &path, name).await?;
            }
            None => survey.strange.push(path),
        }
    }
    survey.segments.sort_by_key(|s| s.name);
    Ok(survey)
}

/// The root's UUID and age by the first segment with a header.
pub(super) async fn identify(
    store: &dyn Store,
    survey: &Survey,
) -> Result<Option<([u8; 16], Timestamp)>> {
    for file in &survey.segments {
        match log::open_segment(store, &file.path).await {
            Ok(s) => return Ok(Some((s.header.root, s.header.created))),
            Err(e) if e.is(ErrorKind::Corrupt) || e.is(ErrorKind::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

impl Survey {
    async fn list(&mut self, store: &dyn Store, dir: &'static str) -> Result<Vec<FileInfo>> {
        match store.list(dir).await {
            Err(e) if e.is(ErrorKind::NotFound) => {
                self.missing.push(dir);
                Ok(Vec::new())
            }
            listed => listed.context(format_args!("listing {dir}")),
        }
    }

    async fn segments_in(
        &mut self,
        store: &dyn Store,
        dir: &str,
        name: impl Fn(u32) -> SegmentName,
    ) -> Result<()> {
        let files = store
            .list(dir)
            .await
            .context(format_args!("listing {dir}"))?;
        for file in files {
            let path = format!("{dir}/{}", file.name);
            match segment::parse_file_name(&file.name).filter(|_| !file.is_dir) {
                Some(n) => self.segments.push(Found {
                    name: name(n),
                    path,
                    size: file.len,
                }),
                None => self.strange.push(path),
            }
        }
        Ok(())
    }
}
