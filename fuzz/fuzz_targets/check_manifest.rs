//! Checks for arbitrary bytes as manifests and other small JSON of clients. The fuzzer uses them,
//! and so does a test of `types/`.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use weir_types::api::{AliasRequest, Aliases, NewApiKey, VersionRequest};
use weir_types::{Alias, FunctionManifest, ModelManifest, ModelRef, Name, SecretName, TenantId, VersionRef};

/// Parses or rejects the bytes as each kind of text that clients send.
pub(crate) fn read_or_refuse(bytes: &[u8]) {
    round_trip::<FunctionManifest>(bytes);
    round_trip::<ModelManifest>(bytes);
    round_trip::<NewApiKey>(bytes);
    round_trip::<AliasRequest>(bytes);
    round_trip::<Aliases>(bytes);
    round_trip::<VersionRequest>(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(name) = Name::new(text) {
        assert!(!text.contains(['/', ':']) && !text.contains(".."), "{name}");
        assert!(TenantId::new(text).is_ok());
    }
    if let Ok(alias) = Alias::new(text) {
        assert_eq!(text.parse::<VersionRef>().ok(), Some(VersionRef::Alias(alias)));
    }
    if let Ok(name) = SecretName::new(text) {
        assert_eq!(name.to_string(), text);
    }
    if let Ok(model) = text.parse::<ModelRef>() {
        assert_eq!(model.to_string().parse::<ModelRef>().ok(), Some(model));
    }
}

/// A value is the same when it is written and read again.
fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else { return };
    let text = serde_json::to_vec(&value).expect("it was JSON before");
    assert_eq!(serde_json::from_slice::<T>(&text).expect("it is JSON"), value);
}
