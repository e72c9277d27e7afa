//! The few properties of a Hadoop configuration folder that this layer must know itself.
//! (hdfs-native reads the same files for everything else.)

use crate::base::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

#[derive(Default)]
pub(super) struct HadoopConf {
    /// Where it came from, for messages.
    dir: Option<PathBuf>,
    properties: HashMap<String, String>,
}

impl HadoopConf {
    /// From the folder given, else $HADOOP_CONF_DIR, else $HADOOP_HOME/etc/hadoop; none is fine.
    pub fn load(dir: Option<&Path>) -> Result<HadoopConf> {
        let from_env = |name, below| std::env::var_os(name).map(|d| Path::new(&d).join(below));
        let dir = match dir {
            Some(dir) if !dir.is_dir() => {
                let text = format!("the Hadoop configuration folder {dir:?} does not exist");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Some(dir) => Some(dir.to_path_buf()),
            None => from_env("HADOOP_CONF_DIR", "").or(from_env("HADOOP_HOME", "etc/hadoop")),
        };
        let mut properties = HashMap::new();
        for file in ["core-site.xml", "hdfs-site.xml"] {
            let path = dir.iter().map(|d| d.join(file)).find(|p| p.exists());
            if let Some(path) = path {
                read(&path, &mut properties).map_err(|e| {
                    Error::new(ErrorKind::Invalid, format!("cannot use {path:?}: {e}"))
                })?;
            }
        }
        Ok(HadoopConf { dir, properties })
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(String::as_str)
    }

    /// The ids of the NameNodes of a nameservice; empty if it is not defined.
    pub fn namenodes(&self, nameservice: &str) -> Vec<String> {
        let ids = self
            .get(&format!("dfs.ha.namenodes.{nameservice}"))
            .unwrap_or("");
        ids.split(',')
            .map(str::trim)
            .filter(|id| !id.is_empty())
            .map(str::to_string)
            .collect()
    }

    /// The NameNode or nameservice that a URL names, or the default one.
    pub fn authority(&self, given: Option<&str>) -> Result<String> {
        let Some(authority) = given.or_else(|| self.default_authority()) else {
            let text = format!(
                "it names no NameNode, and {} gives no fs.defaultFS; say hdfs://host:port/dir",
                self.place()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        if !has_port(authority) && self.namenodes(authority).is_empty() {
            let text = format!(
                "{authority} is no nameservice of {}; name its folder with HADOOP_CONF_DIR, or \
                 say hdfs://{authority}:8020/… if it is a host",
                self.place()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(authority.to_string())
    }

    fn default_authority(&self) -> Option<&str> {
        let rest = self.get("fs.defaultFS")?.strip_prefix("hdfs://")?;
        rest.split('/').next().filter(|a| !a.is_empty())
    }

    fn place(&self) -> String {
        match &self.dir {
            Some(dir) => format!("the Hadoop configuration in {dir:?}"),
            None => "no Hadoop configuration (HADOOP_CONF_DIR is not set)".into(),
        }
    }
}

/// The colons of an IPv6 address stand in brackets.
pub(super) fn has_port(authority: &str) -> bool {
    authority
        .rsplit(']')
        .next()
        .is_some_and(|s| s.contains(':'))
}

fn read(path: &Path, into: &mut HashMap<String, String>) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let tree =
        roxmltree::Document::parse_with_options(&text, options).map_err(|e| e.to_string())?;
    for property in tree.descendants().filter(|n| n.has_tag_name("property")) {
        let child = |tag| property.children().find(|n| n.has_tag_name(tag));
        let text = |tag| {
            child(tag)
                .and_then(|n| n.text())
                .map(|t| t.trim().to_string())
        };
        if let (Some(name), Some(value)) = (text("name"), text("value")) {
            into.insert(name, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let xml = "<?xml version=\"1.0\"?><configuration>\n<property><name>dfs.ha.namenodes.ns1\
                   </name><value>nn1, nn2</value></property></configuration>";
        std::fs::write(dir.path().join("hdfs-site.xml"), xml).unwrap();
        let conf = HadoopConf::load(Some(dir.path())).unwrap();
        assert_eq!(conf.namenodes("ns1"), ["nn1", "nn2"]);
        assert!(conf.namenodes("ns2").is_empty());

        std::fs::write(dir.path().join("core-site.xml"), "<configuration>").unwrap();
        let e = HadoopConf::load(Some(dir.path())).err().unwrap();
        assert!(e.to_string().contains("core-site.xml"), "{e}");
        assert!(HadoopConf::load(Some(Path::new("/nonexistent"))).is_err());
    }
}
