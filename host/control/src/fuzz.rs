//! Checks of the datastore's records with arbitrary bytes, for fuzz targets and for tests without a
//! fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

#[path = "../../../fuzz/round_trip.rs"]
mod round_trip;

use crate::AliasChange;
use crate::keys::record::{self as keys, KeyRecord};
use crate::models::ModelRoles;
use crate::models::head::ModelHead;
use crate::models::record::{self as models, ModelRecord, ProfileRecord};
use crate::objects::record::{self as objects, ObjectRecord};
use crate::registry::record::{head_key, version_key};
use crate::registry::{
    DeploymentKind, FunctionParts, FunctionRecord, Registry, RegistryError, VersionRecord,
};
use crate::secrets::record::{self as secrets, SecretRecord};
use crate::workflows::{WorkflowRecord, Workflows};
use bytes::Bytes;
use round_trip::round_trip;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use tokio::runtime::{Builder, Runtime};
use weir_datastore::{Datastore, Key, MemoryStore, Transaction};
use weir_storage::Changes;
use weir_telemetry::Metrics;
use weir_telemetry::logs::{Logs, LogsConfig};
use weir_types::{Alias, ContentHash, FunctionKind, FunctionManifest, Name, TenantId, Version};

/// Records of one name in a check.
const RECORDS_MAX: usize = 8;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_time().build().expect("a runtime without I/O starts")
});

static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(Metrics::new);
static LOGS: LazyLock<Arc<Logs>> = LazyLock::new(|| Logs::new(LogsConfig::default()));

/// Reads or skips records: a line for each. As the registry of functions and that of workflows, the
/// first line is the head of a name, and the others are versions.
pub fn registry(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').take(RECORDS_MAX).collect();
    for line in &lines {
        records(line);
        let key = std::str::from_utf8(line).ok().and_then(|text| Key::new(text).ok());
        key.iter().for_each(owners);
    }
    RUNTIME.block_on(async {
        let functions = FunctionParts::new(METRICS.clone(), LOGS.clone()).0;
        deployments(functions, &lines, function).await;
        deployments(Workflows::new(METRICS.clone()), &lines, workflow).await;
    });
}

/// A record is the same when it is written and read again.
fn records(line: &[u8]) {
    round_trip::<KeyRecord>(line);
    round_trip::<SecretRecord>(line);
    round_trip::<ObjectRecord>(line);
    round_trip::<ModelRecord>(line);
    round_trip::<ProfileRecord>(line);
    if let Some(head) = round_trip::<ModelHead>(line) {
        for known in [&[][..], &[1], &[1, 2], &[u32::MAX]] {
            let versions: BTreeMap<_, _> = known.iter().map(|version| (Version(*version), ())).collect();
            let roles = ModelRoles::new(&versions, Some(&head));
            assert!(roles.active.is_none_or(|active| versions.contains_key(&active)), "{roles:?}");
            assert!(roles.previous.is_none_or(|previous| versions.contains_key(&previous)), "{roles:?}");
        }
    }
}

/// A key that names an owner is the key of this owner's record.
fn owners(key: &Key) {
    if let Some((tenant, name)) = keys::owner_of(key) {
        assert_eq!(keys::record_key(&tenant, &name).as_ref(), Ok(key));
        assert_eq!(keys::owner_in(key.as_str().as_bytes()), Some((tenant, name)));
    }
    if let Some((tenant, name)) = secrets::owner_of(key) {
        assert_eq!(secrets::record_key(&tenant, &name).as_ref(), Ok(key));
    }
    if let Some((tenant, name)) = objects::object_of(key).filter(|_| key.as_str().starts_with("objects/")) {
        assert_eq!(objects::object_key(&tenant, &name).as_ref(), Ok(key));
    }
    if let Some(id) = models::id_of(key) {
        assert!(models::model_key(&id).is_ok());
    }
    let _ = (models::head_of(key), models::profile_of(key));
}

/// A registry with these records serves the versions that it can read, and takes changes.
async fn deployments<K: DeploymentKind>(kind: K, lines: &[&[u8]], new: fn(Version) -> K::Record) {
    let store: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let tenant = TenantId::default();
    let name = Name::new("f").expect("a valid name");
    let mut writes = Transaction::new();
    for (place, line) in lines.iter().enumerate() {
        let number = u32::try_from(place).expect("there are few");
        let read = serde_json::from_slice::<K::Record>(line);
        let version = read.map_or(Version(number), |record| record.version());
        let key = match place {
            0 => head_key::<K>(&tenant, &name),
            _ => version_key::<K>(&tenant, &name, version),
        };
        let key = key.expect("a valid key");
        if writes.writes.iter().all(|write| *write.key() != key) {
            writes = writes.put(key, Bytes::copy_from_slice(line));
        }
    }
    store.commit(writes).await.expect("a store in memory takes writes");
    let (registry, _) =
        Registry::open(store, kind, Changes::default()).await.expect("unreadable records are skipped");
    if let Some(entry) = registry.get(&tenant, name.as_str()) {
        let _ = (entry.active(), entry.canary(), entry.choose(None), entry.choose(Some(b"key")));
        assert!(entry.versions.keys().all(|version| entry.require(*version).is_ok()));
    }
    let alias = Alias::new("prod").expect("a valid alias");
    let to = (AliasChange::Set(Version(1)), 1);
    let _ = registry.change_alias(&tenant, &name, alias.clone(), to).await;
    let _ = registry.promote_to(&tenant, &name, None).await;
    let deployed = registry.deploy(&tenant, &name, (), new).await;
    if let Ok(deployed) = &deployed {
        let entry = registry.get(&tenant, name.as_str()).expect("it was deployed");
        assert_eq!(entry.head.active, K::record(deployed).version());
        assert!(entry.active().is_some() && entry.head.next > entry.head.active);
    }
    assert!(!matches!(deployed, Err(RegistryError::CutOff(_))), "a deployment panics");
    let rolled_back = registry.roll_back(&tenant, &name, None).await.map(drop);
    assert!(!matches!(rolled_back, Err(RegistryError::CutOff(_))), "a rollback panics");
    let removed = registry.delete(&tenant, &name).await;
    assert!(!matches!(removed, Err(RegistryError::CutOff(_))), "a removal panics");
    assert!(removed.is_err() || registry.get(&tenant, name.as_str()).is_none());
}

fn function(version: Version) -> FunctionRecord {
    FunctionRecord {
        version,
        kind: FunctionKind::Http02,
        digest: ContentHash::from_content(b"component"),
        component_bytes: 9,
        deployed_at_ms: 0,
        imports: Vec::new(),
        manifest: FunctionManifest::default(),
    }
}

fn workflow(version: Version) -> WorkflowRecord {
    WorkflowRecord {
        version,
        deployed_at_ms: 0,
        document: String::new(),
        slo_ms: None,
        cost_slo: None,
        pinned: BTreeMap::new(),
    }
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        seeds("registry").iter().for_each(|seed| registry(seed));
    }

    proptest! {
        #[test]
        fn mutated_records_are_read_or_skipped(bytes in mutated("registry")) {
            registry(&bytes);
        }
    }
}
