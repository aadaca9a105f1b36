//! What the owner of a function or model says about it. Read from TOML in a project and from JSON over HTTP; unknown keys are refused.

use crate::{Autosize, Batching, Cost, DeviceChoice, Limits, Name, ObjectGrants, Precision, Reuse, Version};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Everything a function is granted. The default grants clocks, randomness and standard output, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionManifest {
    /// The models the function may open.
    pub models: Vec<ModelRef>,
    /// Environment variables the guest sees. The node's own are never shown.
    pub env: BTreeMap<String, String>,
    /// Hosts that the guest may send HTTP requests to, as `host` or `host:port`; `*` allows all.
    pub outbound_hosts: Vec<String>,
    /// The named objects that the function may use.
    #[serde(skip_serializing_if = "ObjectGrants::is_empty")]
    pub objects: ObjectGrants,
    /// Whether a call whose node was lost may be made again, on another. A GET always may. A node by itself makes no call twice.
    pub idempotent: bool,
    /// How long an answer may be given to calls that are equal, in milliseconds, up to [`CACHE_TTL_MS_MAX`]; none runs every call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_ttl_ms: Option<u64>,
    /// Whether an instance may answer more calls than one, and how far; none makes a fresh one for every call. Written as `true`, or as a
    /// table with some of its bounds.
    #[serde(deserialize_with = "reuse", skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Reuse>,
    /// How long a call may take, from its arrival to the end of its answer, in milliseconds. One that would take longer is turned away on
    /// arrival, so that those admitted before keep to it; one that does take longer goes on, and is counted as a miss. None: calls wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// What the device time of a call may cost, in the unit of the node's prices. One that would cost more is turned away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// What the function may use.
    pub limits: Limits,
}

/// Read the key `reuse` of a manifest: `true`, `false` or a table. For serde's `deserialize_with`.
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

/// What a component is, told by its exports.
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

/// A model as a manifest or a guest names it: `name`, or `name:version` for one version of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelRef {
    /// The model's name.
    pub name: Name,
    /// The version, or none for whichever is newest when the model is opened.
    pub version: Option<Version>,
}

impl ModelRef {
    /// Whether a grant of `self` covers opening `wanted`.
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
                let number = version.parse().ok().filter(|n| *n > 0);
                (name, Some(Version(number.ok_or_else(|| bad("a version is a number from 1 up".into()))?)))
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
        match self.version {
            None => write!(f, "{}", self.name),
            Some(version) => write!(f, "{}:{version}", self.name),
        }
    }
}

/// A reference to a model that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{model:?} is not a model reference (NAME or NAME:VERSION): {why}")]
pub struct ManifestError {
    model: String,
    why: String,
}

/// How a model is to be served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelManifest {
    /// Sessions that run at once on a device; none lets the node choose.
    pub slots: Option<u32>,
    /// Where it may run: `any`, `cpu` or `cuda`.
    #[serde(skip_serializing_if = "DeviceChoice::is_any")]
    pub device: DeviceChoice,
    /// What it computes in on a GPU: `fp32`, `tf32` (the default), `fp16` or `bf16`. On a processor it is what its file says.
    #[serde(skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// How long an inference of the model by itself may take, in milliseconds; see [`FunctionManifest::slo_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// What the device time of an inference of the model by itself may cost, in the unit of the node's prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// How requests that wait for it are run together.
    pub batching: Batching,
    /// Have the node choose how many runs go on at once, and with how many threads, by the rate of requests; none for as many as there are slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autosize: Option<Autosize>,
    /// How long an answer may be given to inferences that are equal, in milliseconds, up to [`CACHE_TTL_MS_MAX`]; none runs every inference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_ttl_ms: Option<u64>,
}

/// The longest that an answer may be kept for other calls: 30 days.
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
        for bad in ["", ":1", "a:", "a:0", "a:-1", "a:b", "../x"] {
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
        // What an older node, which does not know the key, has to read.
        assert!(!serde_json::to_string(&FunctionManifest::default()).unwrap().contains("reuse"));
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = serde_json::from_str::<FunctionManifest>(r#"{"limits":{"memory":1}}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `memory`"), "{error}");
    }
}
