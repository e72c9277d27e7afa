//! What `-o` means: options of mount(8), options of stowfs, and words for others to read.

use super::convert::Squash;
use crate::base::{Config, Error, ErrorKind, Result};
use fuser::MountOption;

/// The part of `-o` that concerns the kernel and the adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    pub allow_other: bool,
    pub read_only: bool,
    pub suid: bool,
    pub dev: bool,
    pub noexec: bool,
    pub noatime: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub squash: Squash,
}

/// Words of fstab that are for mount(8), systemd or a person.
const IGNORED: &[&str] = &[
    "_netdev",
    "auto",
    "noauto",
    "defaults",
    "nofail",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "diratime",
    "nodiratime",
    "loud",
    "silent",
    "mand",
    "nomand",
];

impl MountOptions {
    /// Applies one `-o` argument: words separated by commas; later ones win.
    pub fn apply(&mut self, words: &str, config: &mut Config) -> Result<()> {
        words
            .split(',')
            .filter(|w| !w.is_empty())
            .try_for_each(|w| self.apply_word(w, config))
    }

    fn apply_word(&mut self, word: &str, config: &mut Config) -> Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "allow_other" => self.allow_other = true,
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "atime" => self.noatime = false,
            "noatime" => self.noatime = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "uid" => self.squash.uid = Some(number(name, value, 10)?),
            "gid" => self.squash.gid = Some(number(name, value, 10)?),
            "umask" => self.squash.umask = Some(number(name, value, 8)? & 0o777),
            "comment" => {}
            _ if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            _ => config.set(&name.replace('-', "_"), value)?,
        }
        Ok(())
    }

    /// For the kernel. Permissions are always checked there, by the modes that the files show.
    pub fn to_fuser(&self, source: &str) -> Vec<MountOption> {
        let pick = |on: bool, yes: MountOption, no: MountOption| if on { yes } else { no };
        let mut options = vec![
            // A comma would end the name when fusermount3 parses it.
            MountOption::FSName(source.replace(',', "%2C")),
            MountOption::Subtype("stowfs".to_string()),
            MountOption::DefaultPermissions,
            pick(self.read_only, MountOption::RO, MountOption::RW),
            pick(self.suid, MountOption::Suid, MountOption::NoSuid),
            pick(self.dev, MountOption::Dev, MountOption::NoDev),
            pick(self.noexec, MountOption::NoExec, MountOption::Exec),
            pick(self.noatime, MountOption::NoAtime, MountOption::Atime),
            pick(self.sync, MountOption::Sync, MountOption::Async),
        ];
        if self.dirsync {
            options.push(MountOption::DirSync);
        }
        options
    }
}

fn number(name: &str, value: &str, radix: u32) -> Result<u32> {
    u32::from_str_radix(value, radix).map_err(|_| {
        let kind = if radix == 8 {
            "an octal number"
        } else {
            "a number"
        };
        Error::new(
            ErrorKind::Invalid,
            format!("option {name}={value}: not {kind}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<(MountOptions, Config)> {
        let (mut options, mut config) = (MountOptions::default(), Config::default());
        options
            .apply(words, &mut config)
            .map(|()| (options, config))
    }

    #[test]
    fn a_line_of_fstab() {
        let (options, config) = parse(
            "rw,noexec,_netdev,nofail,x-systemd.requires=network.target,allow_other,uid=1000,\
             umask=022,cache_size=1GiB,commit-wait=5ms,takeover",
        )
        .unwrap();
        assert!(options.noexec && options.allow_other && !options.suid && !options.dev);
        assert_eq!(
            options.squash,
            Squash {
                uid: Some(1000),
                gid: None,
                umask: Some(0o022)
            }
        );
        assert_eq!(config.cache_size, 1 << 30);
        assert!(config.takeover);
    }

    #[test]
    fn unknown_and_malformed_words_are_named() {
        for (words, named) in [
            ("ro,bogus", "bogus"),
            ("uid=root", "uid"),
            ("umask=9", "umask"),
        ] {
            let e = parse(words).unwrap_err();
            assert!(e.to_string().contains(named), "{e}");
        }
    }

    #[test]
    fn the_last_word_wins_and_the_kernel_gets_safe_defaults() {
        let (options, _) = parse("ro,suid,rw").unwrap();
        let kernel = options.to_fuser("file:///a,b");
        assert!(kernel.contains(&MountOption::RW) && kernel.contains(&MountOption::Suid));
        assert!(kernel.contains(&MountOption::NoDev));
        assert!(kernel.contains(&MountOption::FSName("file:///a%2Cb".to_string())));
    }
}
