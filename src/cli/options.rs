//! Where options come from: the command line, the environment, a file, the defaults; the first
//! that names an option wins. All use the table in `base::config`.

use super::args::MountArgs;
use crate::base::config::OPTIONS;
use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result};
use crate::fuse::MountOptions;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, builder::StyledStr};
use std::ffi::OsString;
use std::path::Path;

/// The environment names an option as STOWFS_CACHE_SIZE.
const ENV_PREFIX: &str = "STOWFS_";
/// Variables that are for the tests of stowfs; no option.
const ENV_TESTS: &str = "STOWFS_TEST_";

/// Options given on the command line: name and text.
#[derive(Clone, Debug, Default)]
pub struct OptionArgs(Vec<(&'static str, String)>);

impl clap::Args for OptionArgs {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(
            command.next_help_heading("Options of stowfs"),
            |command, option| {
                let flag = option.unit == "BOOL";
                let default = (option.default)();
                let shown = if flag || default.is_empty() {
                    String::new()
                } else {
                    format!(" [default: {default}]")
                };
                let arg = Arg::new(option.name)
                    .long(option.name.replace('_', "-"))
                    .value_name(option.unit)
                    .help(StyledStr::from(format!("{}{shown}", option.doc.trim())))
                    .action(ArgAction::Set);
                let arg = if flag {
                    arg.num_args(0..=1)
                        .require_equals(true)
                        .default_missing_value("true")
                } else {
                    arg
                };
                command.arg(arg)
            },
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OptionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name| matches.get_one::<String>(name).cloned();
        Ok(OptionArgs(
            OPTIONS
                .iter()
                .filter_map(|o| Some((o.name, given(o.name)?)))
                .collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// All options of a mount.
pub fn gather(
    args: &MountArgs,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(Config, MountOptions)> {
    gather_words(args, environment).map_err(usage)
}

/// Whatever is wrong with an option, also a file of them that cannot be read.
fn usage(e: Error) -> Error {
    Error::new(ErrorKind::Usage, e.to_string())
}

fn gather_words(
    args: &MountArgs,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(Config, MountOptions)> {
    let mut config = ambient(args.config.as_deref(), environment)?;
    let mut options = MountOptions::default();
    for words in &args.words {
        options.apply(words, &mut config)?;
    }
    given(&mut config, &args.options)?;
    Ok((config, options))
}

/// The options of a command that does not mount.
pub fn config(
    file: Option<&Path>,
    arguments: &OptionArgs,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Config> {
    let mut config = ambient(file, environment).map_err(usage)?;
    given(&mut config, arguments).map_err(usage)?;
    Ok(config)
}

fn given(config: &mut Config, arguments: &OptionArgs) -> Result<()> {
    for (name, value) in &arguments.0 {
        config.set(name, value)?;
    }
    config.check()
}

fn ambient(
    file: Option<&Path>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Config> {
    let mut config = Config::default();
    if let Some(file) = file {
        from_file(&mut config, file)?;
    }
    from_environment(&mut config, environment)?;
    Ok(config)
}

fn from_file(config: &mut Config, file: &Path) -> Result<()> {
    let naming = format!("configuration file {}", file.display());
    let text = std::fs::read_to_string(file).context(&naming)?;
    config.apply_toml(&text).context(&naming)
}

fn from_environment(
    config: &mut Config,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<()> {
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|n| !n.starts_with(ENV_TESTS)) else {
            continue;
        };
        let Some(option) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let value = value.to_str().ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("environment variable {name}: not UTF-8"),
            )
        })?;
        config
            .set(&option.to_lowercase(), value)
            .context(format!("environment variable {name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::args::{Args, Command};
    use super::*;
    use clap::{CommandFactory, Parser};
    use std::time::Duration;

    fn gathered(
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(Config, MountOptions)> {
        let all = ["stowfs", "mount", "file:///s", "/m"]
            .iter()
            .chain(arguments);
        let Command::Mount(args) = Args::try_parse_from(all).unwrap().command else {
            panic!("not a mount");
        };
        gather(&args, environment.iter().map(|(n, v)| (n.into(), v.into())))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_shows_unit_and_default_of_every_option() {
        let mut command = Args::command();
        let help = command
            .find_subcommand_mut("mount")
            .unwrap()
            .render_long_help()
            .to_string();
        for option in OPTIONS {
            let shown = format!("--{}", option.name.replace('_', "-"));
            let at = help
                .find(&shown)
                .unwrap_or_else(|| panic!("{shown} is not in --help"));
            assert!(help[at..].contains(option.unit));
        }
        assert!(help.contains("[default: 256MiB]"), "{help}");
    }

    #[test]
    fn the_command_line_wins_over_environment_over_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stowfs.toml");
        std::fs::write(
            &file,
            "cache_size = '1MiB'\nop_timeout = '7s'\nreplication = 2\n",
        )
        .unwrap();
        let file = file.to_str().unwrap();
        let environment = [
            ("STOWFS_CACHE_SIZE", "2MiB"),
            ("STOWFS_OP_TIMEOUT", "8s"),
            ("PATH", ""),
        ];
        let arguments = [
            "--config",
            file,
            "--cache-size=3MiB",
            "-o",
            "threads=3",
            "--takeover",
        ];
        let (config, _) = gathered(&arguments, &environment).unwrap();
        assert_eq!(config.cache_size, 3 << 20);
        assert_eq!(config.op_timeout, Duration::from_secs(8));
        assert_eq!(
            (config.replication, config.threads, config.takeover),
            (2, 3, true)
        );
        assert_eq!(config.attr_timeout, Config::default().attr_timeout);
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let e = gathered(&[], &[("STOWFS_CASH_SIZE", "1")])
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("STOWFS_CASH_SIZE") && e.contains("cache_size"),
            "{e}"
        );
        let e = gathered(&["-o", "cash_size=1"], &[]).unwrap_err();
        assert!(e.to_string().contains("cash_size"), "{e}");
        assert!(gathered(&[], &[("STOWFS_TEST_SEEDS", "1")]).is_ok());
        assert!(Args::try_parse_from(["stowfs", "mount", "a", "b", "--cash-size=1"]).is_err());
    }
}
