//! What a NameNode says about itself over HTTP (`/jmx`).

use crate::support::http;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Debug)]
pub struct FsState {
    pub operational: bool,
    pub live_datanodes: usize,
}

/// The size of a namespace, and how many transactions its edit log has had.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    pub files: u64,
    pub blocks: u64,
    pub transactions: u64,
}

/// How often clients called each NameNode method, by its name in JMX (`Create`, `AddBlock`, …).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcCounts(pub BTreeMap<String, u64>);

impl RpcCounts {
    pub fn get(&self, method: &str) -> u64 {
        self.0.get(method).copied().unwrap_or(0)
    }

    pub fn create(&self) -> u64 {
        self.get("Create")
    }

    pub fn add_block(&self) -> u64 {
        self.get("AddBlock")
    }

    pub fn complete(&self) -> u64 {
        self.get("Complete")
    }

    pub fn fsync(&self) -> u64 {
        self.get("Fsync")
    }

    pub fn delete(&self) -> u64 {
        self.get("Delete")
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The calls made since an earlier count.
    pub fn since(&self, earlier: &RpcCounts) -> RpcCounts {
        let diff = |(k, v): (&String, &u64)| (k.clone(), v.saturating_sub(earlier.get(k)));
        RpcCounts(self.0.iter().map(diff).filter(|(_, v)| *v > 0).collect())
    }

    pub fn add(&mut self, other: &RpcCounts) {
        for (k, v) in &other.0 {
            *self.0.entry(k.clone()).or_default() += v;
        }
    }
}

pub fn fs_state(http: u16) -> Result<FsState, String> {
    let bean = bean(http, "Hadoop:service=NameNode,name=FSNamesystemState")?;
    Ok(FsState {
        operational: bean["FSState"] == "Operational",
        live_datanodes: bean["NumLiveDataNodes"].as_u64().unwrap_or(0) as usize,
    })
}

pub fn namespace(http: u16) -> Result<Namespace, String> {
    let bean = bean(http, "Hadoop:service=NameNode,name=FSNamesystem")?;
    let number = |key: &str| bean[key].as_u64().ok_or(format!("no {key}"));
    Ok(Namespace {
        files: number("FilesTotal")?,
        blocks: number("BlocksTotal")?,
        transactions: number("LastWrittenTransactionId")?,
    })
}

/// How many live DataNodes have told of their disks: after a NameNode's restart they are alive a
/// heartbeat earlier, when it cannot place a block on them yet.
pub fn datanodes_with_room(http: u16) -> Result<usize, String> {
    let bean = bean(http, "Hadoop:service=NameNode,name=NameNodeInfo")?;
    let text = bean["LiveNodes"].as_str().unwrap_or("{}");
    let nodes: BTreeMap<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let has_room = |node: &&Value| node["capacity"].as_u64().is_some_and(|c| c > 0);
    Ok(nodes.values().filter(has_room).count())
}

/// Whether a DataNode is registered with these NameNodes, by their ports, and heard by them of late.
pub fn datanode_serves(http: u16, namenodes: &[u16]) -> Result<bool, String> {
    let bean = bean(http, "Hadoop:service=DataNode,name=DataNodeInfo")?;
    let text = bean["BPServiceActorInfo"].as_str().unwrap_or("[]");
    let actors: Vec<Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let seconds = |v: &Value| v.as_str().and_then(|s| s.parse::<u64>().ok());
    let serves = |actor: &Value| {
        actor["ActorState"] == "RUNNING"
            && seconds(&actor["LastHeartbeatResponseTime"]).is_some_and(|s| s < 5)
    };
    let speaks_to = |port: &u16| {
        let address = format!(":{port}");
        let is_it = |actor: &&Value| {
            let at = actor["NamenodeAddress"].as_str();
            at.is_some_and(|at| at.ends_with(&address))
        };
        actors.iter().find(is_it).is_some_and(serves)
    };
    Ok(!actors.is_empty() && namenodes.iter().all(speaks_to))
}

/// Block replicas that a DataNode has removed since it started.
pub fn blocks_removed(http: u16) -> Result<u64, String> {
    let bean = bean(http, "Hadoop:service=DataNode,name=DataNodeActivity*")?;
    let removed = bean["BlocksRemoved"].as_u64();
    removed.ok_or_else(|| "no BlocksRemoved".to_string())
}

/// `active` or `standby`.
pub fn namenode_state(http: u16) -> Result<String, String> {
    let bean = bean(http, "Hadoop:service=NameNode,name=NameNodeStatus")?;
    Ok(bean["State"].as_str().unwrap_or_default().to_string())
}

pub fn rpc_counts(http: u16, rpc_port: u16) -> Result<RpcCounts, String> {
    let name = format!("Hadoop:service=NameNode,name=RpcDetailedActivityForPort{rpc_port}");
    let bean = bean(http, &name)?;
    let mut counts = BTreeMap::new();
    for (key, value) in bean.as_object().into_iter().flatten() {
        if let (Some(method), Some(n)) = (key.strip_suffix("NumOps"), value.as_u64()) {
            // Each call is counted again as `Overall…`, and one that failed as its exception.
            if !method.starts_with("Overall") && !method.ends_with("Exception") {
                counts.insert(method.to_string(), n);
            }
        }
    }
    Ok(RpcCounts(counts))
}

fn bean(http: u16, name: &str) -> Result<Value, String> {
    let mut json = http::get(http, &format!("/jmx?qry={name}"))?;
    match json["beans"].get_mut(0) {
        Some(bean) => Ok(bean.take()),
        None => Err(format!("no bean {name}")),
    }
}
