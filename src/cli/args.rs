//! The commands and their arguments.

use super::options::OptionArgs;
use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
  0   success; for a mount: unmounted after everything was committed
  1   error
  2   wrong usage
  69  fenced: another mount has taken the root over";

/// A filesystem that packs the small files of checkpoints into large segments on HDFS.
#[derive(Parser)]
#[command(name = "stowfs", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Mount(MountArgs),
    Umount(UmountArgs),
    Status(StatusArgs),
    Stat(StatArgs),
    Segments(SegmentsArgs),
    Gc(GcArgs),
    Compact(CompactArgs),
    Fsck(FsckArgs),
    Adopt(AdoptArgs),
    Export(ExportArgs),
    Deleted(DeletedArgs),
    Undelete(UndeleteArgs),
    Scrub(ScrubArgs),
}

/// Mount a root. Prints one line when ready and stays in the foreground until it is unmounted.
///
/// SIGINT, SIGTERM, SIGHUP and umount(8) commit everything and seal the open segments before the
/// process ends.
#[derive(ClapArgs)]
#[command(after_help = EXIT_CODES)]
pub struct MountArgs {
    /// Where the bytes live: file:///dir, hdfs://host:port/dir or hdfs://nameservice/dir
    #[arg(value_name = "STORE-URL")]
    pub url: String,
    /// An existing directory
    pub mountpoint: PathBuf,
    /// Options of mount(8), separated by commas: allow_other, ro, rw, suid, nosuid, dev, nodev,
    /// exec, noexec, atime, noatime, sync, async, dirsync, uid=N, gid=N, umask=OCTAL; and each
    /// option below, as in cache_size=1GiB. [default: rw,nosuid,nodev,exec]
    #[arg(short = 'o', value_name = "WORDS")]
    pub words: Vec<String>,
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Return once the mount is ready; it goes on in the background
    #[arg(long)]
    pub daemon: bool,
    /// This process is the background part of --daemon.
    #[arg(long, hide = true)]
    pub daemon_child: bool,
    #[command(flatten)]
    pub options: OptionArgs,
}

/// Unmount, and wait until everything is committed and the mount's process has ended.
#[derive(ClapArgs)]
pub struct UmountArgs {
    pub mountpoint: PathBuf,
    /// Unmount even if files are open (they stay usable until the process ends)
    #[arg(short = 'l', long)]
    pub lazy: bool,
    /// Where the mount has its lock, if it was given another run-dir
    #[arg(long, value_name = "PATH")]
    pub run_dir: Option<PathBuf>,
}

/// Ask a running mount how it is; prints JSON.
#[derive(ClapArgs)]
pub struct StatusArgs {
    pub mountpoint: PathBuf,
    /// Where the mount has its control socket, if it was given another run-dir
    #[arg(long, value_name = "PATH")]
    pub run_dir: Option<PathBuf>,
}

/// Show an inode and where its bytes are: its extents in segments.
#[derive(ClapArgs)]
pub struct StatArgs {
    /// A file in a mount
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// List the segments of a root: state, size, how much of it files still use, and by how much the
/// segments are larger than that (amplification).
#[derive(ClapArgs)]
pub struct SegmentsArgs {
    /// A store (which is read, not mounted) or the mountpoint of a running mount
    #[arg(value_name = "STORE-URL|MOUNTPOINT")]
    pub target: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: OptionArgs,
}

/// Delete what is due now: segments that nothing refers to any more and whose grace is over, and
/// orphans. Shows what it will do first, and returns when it is done.
///
/// The mount does the same by itself all the time. Interrupting the command does it no harm.
#[derive(ClapArgs)]
pub struct GcArgs {
    /// Of a running mount
    pub mountpoint: PathBuf,
    /// Do not wait for gc-grace. (What is still in use stays, as always.)
    #[arg(long)]
    pub now: bool,
    #[command(flatten)]
    pub common: UpkeepArgs,
}

/// Copy what is live out of segments that are mostly garbage, so that they can be deleted. Shows
/// what it will do first, and returns when it is copied; the emptied segments go after gc-grace.
///
/// The mount does the same by itself, with the target it was given. Interrupting the command does
/// it no harm.
#[derive(ClapArgs)]
pub struct CompactArgs {
    /// Of a running mount
    pub mountpoint: PathBuf,
    /// Bytes in segments per live byte to come down to [default: the mount's compact-target]
    #[arg(long, value_name = "NUMBER", value_parser = target)]
    pub target: Option<f64>,
    #[command(flatten)]
    pub common: UpkeepArgs,
}

#[derive(ClapArgs)]
pub struct UpkeepArgs {
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where the mount has its control socket, if it was given another run-dir
    #[arg(long, value_name = "PATH")]
    pub run_dir: Option<PathBuf>,
}

fn size(text: &str) -> Result<u64, String> {
    let size: bytesize::ByteSize = text
        .parse()
        .map_err(|_| "not a size; write 16MiB, 1GiB, 4096")?;
    Ok(size.as_u64())
}

fn target(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number")?;
    let good = number.is_finite() && number >= 1.0;
    good.then_some(number).ok_or("must be 1 or more".into())
}

const FSCK_CODES: &str = "\
Exit codes:
  0   clean; with --rebuild: nothing was lost
  1   problems, each of them named
  2   the check could not be made";

/// Check a root: its log, all segments, and the checksum of every byte that files use.
///
/// Only reads. The root should not be mounted: what a mount is writing may look damaged.
#[derive(ClapArgs)]
#[command(after_help = FSCK_CODES)]
pub struct FsckArgs {
    /// Where the bytes live: file:///dir, hdfs://host:port/dir or hdfs://nameservice/dir
    #[arg(value_name = "STORE-URL")]
    pub url: String,
    /// Take the root over and begin its log anew with whatever can be saved. Files without a name
    /// go to lost+found; reading bytes that are gone is an error. No segment is changed or deleted
    #[arg(long)]
    pub rebuild: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: OptionArgs,
}

/// Take in plain files that lie below the root: they are readable through the mount, where they
/// are. The first mount does this by itself for all that is there then.
///
/// Nothing is copied; names, sizes and times (on a local store modes and owners too) stay as they
/// are. What is being written, what has a name that the mount has already, and on a local store links,
/// special files and names that are not UTF-8 are left out and named, and the exit code is 1. A root that is mounted on this host is asked; another is taken over for a moment, if nobody
/// has it.
#[derive(ClapArgs)]
#[command(after_help = EXIT_CODES)]
pub struct AdoptArgs {
    /// A store, or the mountpoint of a running mount
    #[arg(value_name = "STORE-URL|MOUNTPOINT")]
    pub target: String,
    /// A directory or file below the root; all of it without
    pub path: Option<String>,
    /// Only list what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Move the bytes of plain files into segments, at compact-rate; the plain files are deleted when
    /// gc-grace is over
    #[arg(long)]
    pub pack: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: OptionArgs,
}

/// Write a tree of a root back as plain files: the way out of stowfs.
///
/// Times, modes, symbolic and hard links, holes and (as root) owners are kept where the destination
/// has them; what it has not is told at the end. Every file is read back and compared, and the
/// destination gets its name when all is there: until then, and if the export is interrupted, there
/// is DEST.part-… beside it. A root that is not mounted is only read; one that a crash left is taken
/// over for as long as it takes.
#[derive(ClapArgs)]
#[command(after_help = EXIT_CODES)]
pub struct ExportArgs {
    /// A store, or the mountpoint of a running mount
    #[arg(value_name = "STORE-URL|MOUNTPOINT")]
    pub source: String,
    /// A directory or file in it; / is all of it
    pub path: String,
    /// What to make: file:///dir/new or hdfs://…/new. It must not exist
    #[arg(value_name = "DEST-URL")]
    pub dest: String,
    /// Go on without what cannot be exported (files that are damaged, names that the destination
    /// cannot have), name each of them, and end with 1
    #[arg(long)]
    pub partial: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: OptionArgs,
}

/// List what was deleted in a mount and may be brought back: a tree as one line, or with PATH
/// everything at it and below it.
///
/// What was deleted is there for gc-grace at least, unless what nothing refers to takes more than
/// gc-keep of the live bytes; after that until its space is given back.
#[derive(ClapArgs)]
pub struct DeletedArgs {
    pub mountpoint: PathBuf,
    /// From the root of the mount on, or from / on
    pub path: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where the mount has its control socket, if it was given another run-dir
    #[arg(long, value_name = "PATH")]
    pub run_dir: Option<PathBuf>,
}

/// Bring back what was deleted last at a path: a file, or a directory with all that it held.
///
/// Nothing that exists is touched. Directories above it that are gone are made again. It comes
/// back all at once and durably, or not at all. Of several things that were deleted at one path,
/// `stowfs deleted` shows the ids.
#[derive(ClapArgs)]
pub struct UndeleteArgs {
    pub mountpoint: PathBuf,
    /// From the root of the mount on, or from / on
    pub path: PathBuf,
    /// Which of several things that were deleted at PATH, as `stowfs deleted` lists them [default:
    /// the last]
    #[arg(long)]
    pub id: Option<u64>,
    /// Bring it back under this path
    #[arg(long, value_name = "NEWPATH", conflicts_with = "into")]
    pub to: Option<PathBuf>,
    /// PATH is a directory that exists: bring back what is missing in it: what was deleted in it, and
    /// what all directories of this path held that were deleted before (with --id, that one), of
    /// each name the last. What exists stays
    #[arg(long)]
    pub into: bool,
    /// Leave out what is not whole any more
    #[arg(long)]
    pub partial: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where the mount has its control socket, if it was given another run-dir
    #[arg(long, value_name = "PATH")]
    pub run_dir: Option<PathBuf>,
}

/// Read all sealed segments of a mount now, and check every checksum. Ctrl-C ends the waiting, not
/// the reading.
#[derive(ClapArgs)]
#[command(after_help = SCRUB_CODES)]
pub struct ScrubArgs {
    pub mountpoint: PathBuf,
    /// Bytes read per second, at most; 0: as fast as it goes. [default: scrub-rate of the mount]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub rate: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where the mount has its control socket, if it was given another run-dir
    #[arg(long, value_name = "PATH")]
    pub run_dir: Option<PathBuf>,
}

const SCRUB_CODES: &str = "\
Exit codes:
  0   no file is damaged
  1   damaged files, each of them named; or it could not be done";
