//! Every option of stowfs, once: name, type, default, unit and explanation. The command line, the
//! environment, the configuration file and `-o` all set options through [`Config::set`], so a name
//! means the same everywhere, and a name that is not in the table is an error.

use super::error::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::time::Duration;

/// One row of the table, for `--help` and documents.
#[derive(Clone, Copy, Debug)]
pub struct OptionInfo {
    /// With underscores; the command line shows it with dashes.
    pub name: &'static str,
    /// What a value looks like: `SIZE`, `TIME`, `NUMBER`, `BOOL`, `PATH`, `LEVEL`.
    pub unit: &'static str,
    pub doc: &'static str,
    /// The default as a user would write it; empty when there is none.
    pub default: fn() -> String,
}

macro_rules! options {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr;)*) => {
        /// The options of one mount. Always valid after [`Config::check`].
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $name: $type,)*
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($name: $default,)* }
            }
        }

        /// All options, in the order of `--help`.
        pub const OPTIONS: &[OptionInfo] = &[
            $(OptionInfo {
                name: stringify!($name),
                unit: <$type as OptionValue>::UNIT,
                doc: concat!($($doc),+),
                default: || OptionValue::show(&Config::default().$name),
            },)*
        ];

        impl Config {
            /// Sets one option from its text. The error names the option.
            pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
                match name {
                    $(stringify!($name) => {
                        self.$name = OptionValue::parse(value)
                            .map_err(|why| invalid(format!("option {name}={value}: {why}")))?;
                    })*
                    _ => return Err(unknown(name)),
                }
                Ok(())
            }

            /// Name and value of each option, as a user would write them.
            pub fn values(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($name), OptionValue::show(&self.$name)),)*]
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

options! {
    /// The most bytes in one segment, from block_size (64MiB, unless given) to 4GiB. A small root gets smaller ones, so that it can be compacted.
    segment_size: u64 = 256 * MIB;
    /// Segments are not made smaller than this, however small the root. [default: 128MiB on HDFS, where each costs several calls to the NameNode; 4MiB on a local store]
    smallest_segment: Option<u64> = None;
    /// The HDFS block size of segments. Bytes stay in memory until their block is complete.
    block_size: u64 = 64 * MIB;
    /// The HDFS replication of segments; a sync waits for this many replicas.
    replication: u16 = 3;
    /// Memory for written bytes that are not durable yet. Writers wait when it is full.
    write_buffer: u64 = 256 * MIB;
    /// Memory for bytes read from the store.
    cache_size: u64 = 256 * MIB;
    /// A file up to this size is committed with its data in the log; a longer one streams to a lane.
    small_file: u64 = 4 * MIB;
    /// A new file of at least this size that will probably live long is kept apart from those that will not, for one more sync. [default: a sixteenth of small-file on a local store; none on HDFS, where a sync is a call to the NameNode]
    lasting_file: Option<u64> = None;
    /// How long a commit may wait, at most as long as a sync usually takes, for others that are about to commit: they share one sync.
    commit_wait: Duration = Duration::from_millis(10);
    /// Namespace changes (create, unlink, …) are durable after at most this time.
    commit_interval: Duration = Duration::from_millis(500);
    /// Data that was written but neither flushed nor synced is committed after this time.
    dirty_age: Duration = Duration::from_secs(5);
    /// A mount that is idle for this long seals its open segments.
    idle_seal: Duration = Duration::from_secs(30);
    /// No segment stays open for longer than this.
    file_age: Duration = Duration::from_secs(15 * 60);
    /// A filesystem operation that takes longer fails with EIO; what it began still completes.
    op_timeout: Duration = Duration::from_secs(60);
    /// How long the kernel may remember a name. (That a name is absent is never remembered.)
    entry_timeout: Duration = Duration::from_secs(1);
    /// How long the kernel may remember the attributes of a file.
    attr_timeout: Duration = Duration::from_secs(1);
    /// Threads that receive requests from the kernel; 0: one per processor, from 2 to 8.
    threads: u16 = 0;
    /// Take the root over from a mount that is alive; that mount is fenced.
    takeover: bool = false;
    /// The folder with core-site.xml and hdfs-site.xml. [default: $HADOOP_CONF_DIR]
    hadoop_conf: Option<PathBuf> = None;
    /// The folder for locks, control sockets and logs. [default: /run/stowfs for root, else
    /// $XDG_RUNTIME_DIR/stowfs or /tmp/stowfs-UID]
    run_dir: Option<PathBuf> = None;
    /// Where messages go. [default: standard error; with --daemon a file in the run-dir]
    log_file: Option<PathBuf> = None;
    /// How long a segment that nothing refers to any more is kept before it is deleted.
    gc_grace: Duration = Duration::from_secs(10 * 60);
    /// Unreferenced segments may take this share of the live bytes while they wait for gc-grace; above it the oldest go at once.
    gc_keep: f64 = 0.1;
    /// Memory for remembering what was deleted, so that `stowfs undelete` can bring it back; 0: none.
    undo_memory: u64 = 16 * MIB;
    /// Segments deleted per second, at most.
    delete_rate: f64 = 20.0;
    /// Bytes of segments deleted per second, at most, so that DataNodes are not held up; 0: not limited. The default is more than a mount writes, so deletion keeps up.
    delete_bytes_rate: u64 = 1024 * MIB;
    /// Files on the store that no index knows (of writers that died) are deleted when they are older than this.
    orphan_age: Duration = Duration::from_secs(3600);
    /// Bytes in segments per live byte above which compaction begins.
    compact_target: f64 = 1.4;
    /// Bytes that compaction copies per second; 0: as fast as it goes.
    compact_rate: u64 = 32 * MIB;
    /// Growth of the log after which a snapshot of the index is taken. A small root takes them sooner: what the log holds cannot be compacted before.
    snapshot_bytes: u64 = 64 * MIB;
    /// How often upkeep (snapshots, compaction, garbage collection) looks for work.
    upkeep_every: Duration = Duration::from_millis(500);
    /// Every segment is read again in this time to check its checksums; 0: only by `stowfs scrub`. [default: 30days on a local store; 0 on HDFS, whose DataNodes do it]
    scrub_every: Option<Duration> = None;
    /// Bytes that scrub reads per second, at most; 0: as fast as it goes.
    scrub_rate: u64 = 8 * MIB;
    /// How much is logged: error, warn, info, debug or trace, also per module (info,stowfs::log=debug).
    log_level: String = "info".to_string();
}

impl Config {
    /// Applies a configuration file in TOML: a flat table of options.
    pub fn apply_toml(&mut self, text: &str) -> Result<()> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            invalid(format!("not valid TOML: {}", e.to_string().trim_end()))
        })?;
        for (name, value) in table {
            let text = match value {
                toml::Value::String(s) => s,
                toml::Value::Integer(i) => i.to_string(),
                toml::Value::Float(f) => f.to_string(),
                toml::Value::Boolean(b) => b.to_string(),
                _ if !OPTIONS.iter().any(|o| o.name == name) => return Err(unknown(&name)),
                other => {
                    return Err(invalid(format!(
                        "option {name}: a {} cannot be a value; write a string",
                        other.type_str()
                    )));
                }
            };
            self.set(&name, &text)?;
        }
        Ok(())
    }

    /// Refuses values that cannot work, alone or together.
    pub fn check(&self) -> Result<()> {
        let range = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            let (value, low, high) = (value.show(), low.show(), high.show());
            Err(invalid(format!(
                "option {name}={value}: must be from {low} to {high}"
            )))
        };
        range("block_size", self.block_size, 4 * KIB, 1024 * MIB)?;
        range(
            "segment_size",
            self.segment_size,
            self.block_size,
            4096 * MIB,
        )?;
        range("small_file", self.small_file, 0, 8 * MIB)?;
        if let Some(smallest) = self.smallest_segment {
            range("smallest_segment", smallest, 64 * KIB, self.segment_size)?;
        }
        range(
            "write_buffer",
            self.write_buffer,
            4 * MIB.max(self.small_file),
            u64::MAX,
        )?;
        if !self.block_size.is_multiple_of(512) {
            return Err(invalid(
                "option block_size: must be a multiple of 512".to_string(),
            ));
        }
        if self.replication == 0 || self.replication > 512 {
            return Err(invalid(
                "option replication: must be from 1 to 512".to_string(),
            ));
        }
        if self.op_timeout < Duration::from_secs(1) {
            return Err(invalid(
                "option op_timeout: must be at least 1s".to_string(),
            ));
        }
        if self.orphan_age < Duration::from_secs(1) {
            return Err(invalid(
                "option orphan_age: must be at least 1s".to_string(),
            ));
        }
        if self.threads > 64 {
            return Err(invalid("option threads: must be at most 64".to_string()));
        }
        Ok(())
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

fn unknown(name: &str) -> Error {
    let names: Vec<&str> = OPTIONS.iter().map(|o| o.name).collect();
    invalid(format!(
        "unknown option {name}; there are: {}",
        names.join(", ")
    ))
}

/// A type of option: its text and back.
trait OptionValue: Sized {
    const UNIT: &'static str;
    fn parse(text: &str) -> Result<Self, String>;
    fn show(&self) -> String;
}

/// A number of bytes.
impl OptionValue for u64 {
    const UNIT: &'static str = "SIZE";
    fn parse(text: &str) -> Result<u64, String> {
        let size: bytesize::ByteSize = text
            .parse()
            .map_err(|_| "not a size; write 16MiB, 1GiB, 4096".to_string())?;
        Ok(size.as_u64())
    }
    fn show(&self) -> String {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if *self >> shift != 0 && self.trailing_zeros() >= shift {
                return format!("{}{unit}", self >> shift);
            }
        }
        self.to_string()
    }
}

impl OptionValue for u16 {
    const UNIT: &'static str = "NUMBER";
    fn parse(text: &str) -> Result<u16, String> {
        text.parse().map_err(|_| "not a whole number".to_string())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for f64 {
    const UNIT: &'static str = "NUMBER";
    fn parse(text: &str) -> Result<f64, String> {
        let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
        if number.is_finite() && number >= 0.0 {
            Ok(number)
        } else {
            Err("must be 0 or more".into())
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for Duration {
    const UNIT: &'static str = "TIME";
    fn parse(text: &str) -> Result<Duration, String> {
        if text == "0" {
            return Ok(Duration::ZERO);
        }
        humantime::parse_duration(text)
            .map_err(|_| "not a time; write 5s, 100ms, 1m 30s".to_string())
    }
    fn show(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

macro_rules! left_to_stowfs {
    ($($type:ty),+) => { $(
        /// An empty text leaves it to stowfs.
        impl OptionValue for Option<$type> {
            const UNIT: &'static str = <$type as OptionValue>::UNIT;
            fn parse(text: &str) -> Result<Option<$type>, String> {
                match text.is_empty() {
                    true => Ok(None),
                    false => <$type as OptionValue>::parse(text).map(Some),
                }
            }
            fn show(&self) -> String {
                self.as_ref().map(OptionValue::show).unwrap_or_default()
            }
        }
    )+ };
}

left_to_stowfs!(Duration, u64);

/// An empty text is true: `-o takeover`.
impl OptionValue for bool {
    const UNIT: &'static str = "BOOL";
    fn parse(text: &str) -> Result<bool, String> {
        match text {
            "" | "true" | "yes" | "1" => Ok(true),
            "false" | "no" | "0" => Ok(false),
            _ => Err("neither true nor false".to_string()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for Option<PathBuf> {
    const UNIT: &'static str = "PATH";
    fn parse(text: &str) -> Result<Option<PathBuf>, String> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }
    fn show(&self) -> String {
        self.as_ref()
            .map(|p| p.display().to_string())
            .unwrap_or_default()
    }
}

impl OptionValue for String {
    const UNIT: &'static str = "LEVEL";
    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_string())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_read_back() {
        let config = Config::default();
        config.check().unwrap();
        let mut again = Config {
            threads: 7,
            ..Config::default()
        };
        for (name, value) in config.values() {
            again.set(name, &value).unwrap();
        }
        assert_eq!(again, config);
    }

    #[test]
    fn sizes_and_times_have_units() {
        let mut c = Config::default();
        c.set("segment_size", "16MiB").unwrap();
        c.set("cache_size", "4096").unwrap();
        c.set("commit_wait", "5s").unwrap();
        c.set("idle_seal", "0").unwrap();
        assert_eq!((c.segment_size, c.cache_size), (16 << 20, 4096));
        assert_eq!(
            (c.commit_wait, c.idle_seal),
            (Duration::from_secs(5), Duration::ZERO)
        );
        for (name, value) in [
            ("commit_wait", "5"),
            ("threads", "many"),
            ("cache_size", "-1"),
        ] {
            let e = c.set(name, value).unwrap_err();
            assert!(e.to_string().contains(name), "{e}");
        }
    }

    #[test]
    fn unknown_names_are_named() {
        let mut c = Config::default();
        assert!(
            c.set("segmentsize", "1")
                .unwrap_err()
                .to_string()
                .contains("segmentsize")
        );
        let e = c
            .apply_toml("cache_size = '1MiB'\nbogus_key = 3\n")
            .unwrap_err();
        assert!(e.to_string().contains("bogus_key"), "{e}");
        let e = c.apply_toml("[section]\nx = 1").unwrap_err();
        assert!(e.to_string().contains("section"), "{e}");
    }

    #[test]
    fn toml_takes_strings_numbers_and_booleans() {
        let mut c = Config::default();
        c.apply_toml("op_timeout = '90s'\nthreads = 4\ntakeover = true\ncache_size = 1024")
            .unwrap();
        assert_eq!((c.op_timeout, c.threads), (Duration::from_secs(90), 4));
        assert_eq!((c.takeover, c.cache_size), (true, 1024));
        assert!(c.apply_toml("threads = 1.5").is_err());
    }

    #[test]
    fn impossible_values_are_refused() {
        for (name, value) in [
            ("segment_size", "1MiB"),
            ("block_size", "1KiB"),
            ("replication", "0"),
            ("op_timeout", "10ms"),
            ("write_buffer", "1KiB"),
        ] {
            let mut c = Config::default();
            c.set(name, value).unwrap();
            assert!(c.check().unwrap_err().to_string().contains(name), "{name}");
        }
    }
}
