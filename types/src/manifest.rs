//! Manifests of functions and models. Read from TOML in a project and from JSON over HTTP; unknown
//! keys are rejected.

use crate::{
    Autosize, Batching, Cost, DeviceChoice, Limits, ModelLabels, Name, ObjectGrants, Precision, Reuse,
    SecretGrants, VersionRef,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Grants, objectives and limits of a function. The default grants only clocks, randomness and
/// standard output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionManifest {
    /// Models that the function may open.
    pub models: Vec<ModelRef>,
    /// Environment variables of the guest, in plain text. The node's environment is never visible to
    /// a guest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secrets that the guest gets, as environment variables.
    #[serde(skip_serializing_if = "SecretGrants::is_empty")]
    pub secrets: SecretGrants,
    /// Hosts that the guest may send HTTP requests to, as `host` or `host:port`; `*` allows all.
    pub outbound_hosts: Vec<String>,
    /// Named objects that the function may use.
    #[serde(skip_serializing_if = "ObjectGrants::is_empty")]
    pub objects: ObjectGrants,
    /// Whether a call may be retried on another node after its node was lost. GET calls are always
    /// retried. A standalone node never retries.
    pub idempotent: bool,
    /// Whether any client may call the function at `/fn/TENANT:NAME`, without a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
    /// How long the response cache may serve a response to equal calls, in milliseconds, up to
    /// [`CACHE_TTL_MS_MAX`]; `None` disables caching.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_ttl_ms: Option<u64>,
    /// Bounds on reusing an instance for several calls; `None` creates a fresh instance for each
    /// call. Written as `true`, or as a table with some of the bounds.
    #[serde(deserialize_with = "reuse", skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Reuse>,
    /// Latency objective, from a call's arrival to the end of its response, in milliseconds. Calls
    /// that are expected to miss the objective are rejected on arrival, which protects the calls
    /// already admitted. An admitted call that misses the objective runs on and is counted as a
    /// miss. With `None`, calls wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// Cost objective: device time of a call, in the unit of the node's prices. Calls that are
    /// expected to cost more are rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// Resource limits.
    pub limits: Limits,
}

/// Reads the key `reuse` of a manifest: `true`, `false` or a table. For serde's `deserialize_with`.
pub fn reuse<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reuse>, D::Error> {
    struct BoolOrTable;
    impl<'de> Visitor<'de> for BoolOrTable {
        type Value = Option<Reuse>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true, false or a table with the bounds of reuse")
        }
        fn visit_bool<E>(self, is_wanted: bool) -> Result<Option<Reuse>, E> {
            Ok(is_wanted.then(Reuse::default))
        }
        fn visit_unit<E>(self) -> Result<Option<Reuse>, E> {
            Ok(None)
        }
        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Option<Reuse>, A::Error> {
            Reuse::deserialize(MapAccessDeserializer::new(table)).map(Some)
        }
    }
    from.deserialize_any(BoolOrTable)
}

/// Kind of a component, determined by its exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionKind {
    /// Exports `wasi:http/incoming-handler@0.2`.
    Http02,
    /// Exports `wasi:http/handler@0.3`.
    Http03,
    /// Exports `weir:inference/stage@0.1`.
    Tensor,
}

/// Reference to a model in a manifest or from a guest: `name`, `name:version` or `name:alias`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelRef {
    /// The model's name.
    pub name: Name,
    /// The version; `None` for the version that calls use at the time of opening.
    pub version: Option<VersionRef>,
}

impl ModelRef {
    /// Whether a grant of `self` covers opening `wanted`. A grant of an alias covers only this alias.
    #[must_use]
    pub fn covers(&self, wanted: &Self) -> bool {
        self.name == wanted.name && (self.version.is_none() || self.version == wanted.version)
    }
}

impl std::str::FromStr for ModelRef {
    type Err = ManifestError;
    fn from_str(text: &str) -> Result<Self, ManifestError> {
        let bad = |why: String| ManifestError { model: text.chars().take(80).collect(), why };
        let (name, version) = match text.split_once(':') {
            None => (text, None),
            Some((name, version)) => {
                (name, Some(version.parse::<VersionRef>().map_err(|error| bad(error.to_string()))?))
            }
        };
        Ok(Self { name: Name::new(name).map_err(|e| bad(e.to_string()))?, version })
    }
}

impl TryFrom<String> for ModelRef {
    type Error = ManifestError;
    fn try_from(text: String) -> Result<Self, ManifestError> {
        text.parse()
    }
}

impl From<ModelRef> for String {
    fn from(model: ModelRef) -> Self {
        model.to_string()
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => write!(f, "{}", self.name),
            Some(version) => write!(f, "{}:{version}", self.name),
        }
    }
}

/// Invalid model reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{model:?} is not a model reference (NAME, NAME:VERSION or NAME:ALIAS): {why}")]
pub struct ManifestError {
    model: String,
    why: String,
}

/// Serving settings of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelManifest {
    /// Limit of concurrent sessions on a device; `None` lets the node choose.
    pub slots: Option<u32>,
    /// Allowed devices: `any`, `cpu` or `cuda`.
    #[serde(skip_serializing_if = "DeviceChoice::is_any")]
    pub device: DeviceChoice,
    /// Compute precision on a GPU: `fp32`, `tf32` (the default), `fp16` or `bf16`. A CPU uses the
    /// precision of the model file.
    #[serde(skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// Latency objective of a direct inference, in milliseconds; see [`FunctionManifest::slo_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// Cost objective: device time of a direct inference, in the unit of the node's prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// Dynamic batching of waiting requests.
    pub batching: Batching,
    /// Automatic choice of the number of concurrent runs and of their threads by the request rate;
    /// `None` uses all slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autosize: Option<Autosize>,
    /// How long the response cache may serve a response to equal inferences, in milliseconds, up to
    /// [`CACHE_TTL_MS_MAX`]; `None` disables caching.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_ttl_ms: Option<u64>,
    /// Time after its last use at which the model leaves the memory of a device, in milliseconds,
    /// up to [`KEEP_ALIVE_MS_MAX`]; `None`: the node's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_ms: Option<u64>,
    /// Minimum number of devices of the cluster that have the model in memory at all times, up to
    /// [`COPIES_MIN_MAX`]; 0: calls load the model.
    #[serde(skip_serializing_if = "is_zero")]
    pub copies_min: u32,
    /// Names of the classes of outputs, for classification.
    #[serde(skip_serializing_if = "ModelLabels::is_empty")]
    pub labels: ModelLabels,
}

/// Longest time for which a manifest keeps an unused model in a device's memory: 30 days.
pub const KEEP_ALIVE_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;

/// Largest [`ModelManifest::copies_min`].
pub const COPIES_MIN_MAX: u32 = 1_000;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(copies: &u32) -> bool {
    *copies == 0
}

/// Longest cache lifetime of a response: 30 days.
pub const CACHE_TTL_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_covers_its_versions() {
        let reference = |text: &str| text.parse::<ModelRef>().unwrap();
        assert!(reference("digits").covers(&reference("digits:3")));
        assert!(reference("digits:3").covers(&reference("digits:3")));
        assert!(!reference("digits:3").covers(&reference("digits:4")));
        assert!(!reference("digits:3").covers(&reference("digits")));
        assert!(!reference("digits").covers(&reference("other")));
        assert!(reference("digits").covers(&reference("digits:stable")));
        assert!(reference("digits:stable").covers(&reference("digits:stable")));
        assert!(!reference("digits:stable").covers(&reference("digits:3")));
        for bad in ["", ":1", "a:", "a:0", "a:-1", "a:B", "../x"] {
            assert!(bad.parse::<ModelRef>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn reuse_is_a_word_or_a_table() {
        let read = |json: &str| serde_json::from_str::<FunctionManifest>(json).map(|manifest| manifest.reuse);
        assert_eq!(read("{}").unwrap(), None);
        assert_eq!(read(r#"{"reuse":false}"#).unwrap(), None);
        assert_eq!(read(r#"{"reuse":null}"#).unwrap(), None);
        assert_eq!(read(r#"{"reuse":true}"#).unwrap(), Some(Reuse::default()));
        let some = Some(Reuse { calls_max: 7, ..Reuse::default() });
        assert_eq!(read(r#"{"reuse":{"calls_max":7}}"#).unwrap(), some);
        for wrong in [r#"{"reuse":7}"#, r#"{"reuse":{"calls":7}}"#, r#"{"reuse":"yes"}"#] {
            assert!(read(wrong).is_err(), "{wrong} was read");
        }
        let manifest = FunctionManifest { reuse: some, ..FunctionManifest::default() };
        let again = serde_json::to_string(&manifest).unwrap();
        assert_eq!(serde_json::from_str::<FunctionManifest>(&again).unwrap(), manifest);
        // Older nodes do not know the key, so the default must not write it; `public` is as new.
        let default = serde_json::to_string(&FunctionManifest::default()).unwrap();
        assert!(!default.contains("reuse") && !default.contains("public"), "{default}");
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = serde_json::from_str::<FunctionManifest>(r#"{"limits":{"memory":1}}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `memory`"), "{error}");
    }
}
