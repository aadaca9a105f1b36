//! Devices of a node: parses `devices` in `[node]` and `--devices`.

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Maximum number of devices per node.
const DEVICES_MAX: usize = 64;
/// Length limit of the kind of a fake device.
const KIND_LEN_MAX: usize = 64;

/// Devices that a node owns.
///
/// In TOML: `"auto"`, `"none"`, or a list of devices, each a name or a table with settings, such as
/// `["cpu", "cuda:0", { device = "cuda:1", slots = 2 }]`. On the command line: `auto`, `none` or
/// `cpu,cuda:0`. A node without devices is an activator: it accepts calls, which other nodes of its
/// cluster run.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DevicesConfig {
    /// The CPU and all GPUs found.
    #[default]
    Auto,
    /// No devices.
    None,
    /// These devices, in this order.
    List(Vec<DeviceConfig>),
}

/// Settings of one device, or of all devices of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Device that the settings apply to.
    pub device: DeviceName,
    /// Memory limit of resident models on the device. None: `models.memory_bytes_max`, or for a GPU
    /// the fraction in `memory_share`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
    /// Fraction of a GPU's memory that models may take, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_share: Option<f64>,
    /// Concurrent model runs on the device. None: `models.slots`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// Device name in the settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// `cpu`: the node's CPU.
    Cpu,
    /// `cuda:N`: one GPU. `cuda`: all GPUs found.
    Cuda(Option<u32>),
    /// `fake:KIND`: a simulated device of this kind, for tests and scheduler experiments.
    Fake(String),
}

/// Invalid `devices` setting.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DevicesError {
    /// Unknown device name.
    #[error("{0:?} is no device: write cpu, cuda, cuda:N or fake:KIND")]
    Unknown(String),
    /// Empty device list.
    #[error(
        "no device is named: write auto, or cpu, cuda:0 and so on; none is for a node of a cluster that only accepts calls"
    )]
    Empty,
    /// Too many devices.
    #[error("a node has at most {DEVICES_MAX} devices")]
    TooMany,
    /// Duplicate device.
    #[error("device {0} is named twice")]
    Twice(DeviceName),
    /// Invalid setting of a device.
    #[error("device {device}: {why}")]
    Setting {
        /// Device with the setting.
        device: DeviceName,
        /// Reason for the rejection.
        why: &'static str,
    },
}

impl DeviceConfig {
    /// Returns a device with default settings.
    #[must_use]
    pub fn new(device: DeviceName) -> Self {
        Self { device, memory_bytes_max: None, memory_share: None, slots: None }
    }

    fn is_plain(&self) -> bool {
        *self == Self::new(self.device.clone())
    }

    fn check(&self) -> Result<(), DevicesError> {
        let wrong = |why| Err(DevicesError::Setting { device: self.device.clone(), why });
        let is_gpu = matches!(self.device, DeviceName::Cuda(_));
        match self {
            Self { memory_share: Some(_), .. } if !is_gpu => {
                wrong("memory_share is for GPUs; say memory_bytes_max")
            }
            Self { memory_share: Some(_), memory_bytes_max: Some(_), .. } => {
                wrong("give memory_share or memory_bytes_max, not both")
            }
            Self { memory_share: Some(share), .. } if !(*share > 0.0 && *share <= 1.0) => {
                wrong("memory_share is above 0 and at most 1")
            }
            Self { slots: Some(0), .. } => wrong("slots is at least 1"),
            _ => Ok(()),
        }
    }
}

impl DevicesConfig {
    fn list(devices: Vec<DeviceConfig>) -> Result<Self, DevicesError> {
        if devices.is_empty() {
            return Err(DevicesError::Empty);
        }
        if devices.len() > DEVICES_MAX {
            return Err(DevicesError::TooMany);
        }
        for (at, config) in devices.iter().enumerate() {
            config.check()?;
            let is_fake = matches!(config.device, DeviceName::Fake(_));
            let before = devices.iter().take(at).any(|before| before.device == config.device);
            if before && !is_fake {
                return Err(DevicesError::Twice(config.device.clone()));
            }
        }
        Ok(Self::List(devices))
    }
}

impl FromStr for DevicesConfig {
    type Err = DevicesError;
    fn from_str(text: &str) -> Result<Self, DevicesError> {
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let names = text.split(',').filter(|name| !name.is_empty());
        Self::list(names.map(|name| Ok(DeviceConfig::new(name.trim().parse()?))).collect::<Result<_, _>>()?)
    }
}

impl FromStr for DeviceName {
    type Err = DevicesError;
    fn from_str(text: &str) -> Result<Self, DevicesError> {
        let unknown = || DevicesError::Unknown(text.chars().take(80).collect());
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(None)),
            Some(("cuda", ordinal)) => Ok(Self::Cuda(Some(ordinal.parse().map_err(|_| unknown())?))),
            Some(("fake", kind)) => {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                let is_kind = (1..=KIND_LEN_MAX).contains(&kind.len()) && kind.chars().all(is_plain);
                // `cpu` is the kind of the CPU.
                is_kind.then(|| Self::Fake(kind.to_owned())).filter(|_| kind != "cpu").ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
            Self::Fake(kind) => write!(f, "fake:{kind}"),
        }
    }
}

impl Serialize for DeviceName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for DevicesConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let devices = match self {
            Self::Auto => return to.serialize_str("auto"),
            Self::None => return to.serialize_str("none"),
            Self::List(devices) => devices,
        };
        let mut list = to.serialize_seq(Some(devices.len()))?;
        for config in devices {
            if config.is_plain() {
                list.serialize_element(&config.device)?;
            } else {
                list.serialize_element(config)?;
            }
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for DevicesConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = DevicesConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", \"none\" or a list of devices")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DevicesConfig, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<DevicesConfig, A::Error> {
                let mut devices = Vec::new();
                while let Some(NameOrTable(config)) = list.next_element()? {
                    devices.push(config);
                }
                DevicesConfig::list(devices).map_err(A::Error::custom)
            }
        }
        from.deserialize_any(TextOrList)
    }
}

struct NameOrTable(DeviceConfig);

impl<'de> Deserialize<'de> for NameOrTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = NameOrTable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a device, or a table with its settings")
            }
            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<NameOrTable, E> {
                Ok(NameOrTable(DeviceConfig::new(name.parse().map_err(E::custom)?)))
            }
            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<NameOrTable, A::Error> {
                DeviceConfig::deserialize(serde::de::value::MapAccessDeserializer::new(table))
                    .map(NameOrTable)
            }
        }
        from.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<DevicesConfig, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn devices_setting_parses_and_serializes() {
        assert_eq!(read("\"auto\""), Ok(DevicesConfig::Auto));
        assert_eq!(read("\"none\""), Ok(DevicesConfig::None));
        assert_eq!(serde_json::to_string(&DevicesConfig::None).unwrap(), "\"none\"");
        let two = || vec![DeviceConfig::new(DeviceName::Cpu), DeviceConfig::new(DeviceName::Cuda(Some(1)))];
        assert_eq!("cpu,cuda:1".parse(), Ok(DevicesConfig::List(two())));
        assert_eq!(read(r#"["cpu", "cuda:1"]"#), Ok(DevicesConfig::List(two())));
        let mut three = two();
        three.push(DeviceConfig {
            memory_bytes_max: Some(5),
            slots: Some(2),
            ..DeviceConfig::new(DeviceName::Fake("slow".to_owned()))
        });
        let json = r#"["cpu","cuda:1",{"device":"fake:slow","memory_bytes_max":5,"slots":2}]"#;
        assert_eq!(read(json), Ok(DevicesConfig::List(three.clone())));
        assert_eq!(serde_json::to_string(&DevicesConfig::List(three)).unwrap(), json);
        assert_eq!(serde_json::to_string(&DevicesConfig::Auto).unwrap(), "\"auto\"");
        assert!("fake:a,fake:a".parse::<DevicesConfig>().is_ok(), "fakes of a kind are as many as one likes");
    }

    #[test]
    fn invalid_devices_are_rejected_with_a_reason() {
        for (json, what) in [
            ("\"\"", "no device is named"),
            ("[]", "no device is named"),
            ("[\"none\"]", "\"none\" is no device"),
            ("\"gpu\"", "\"gpu\" is no device"),
            ("[\"cuda:x\"]", "cuda:x"),
            ("[\"fake:\"]", "fake:"),
            ("[\"fake:cpu\"]", "fake:cpu"),
            ("\"cpu,cpu\"", "cpu is named twice"),
            ("[\"cuda:0\", {\"device\": \"cuda:0\", \"slots\": 1}]", "cuda:0 is named twice"),
            ("[{\"device\": \"cpu\", \"slot\": 1}]", "unknown field `slot`"),
            ("[{\"device\": \"cpu\", \"slots\": 0}]", "at least 1"),
            ("[{\"device\": \"cpu\", \"memory_share\": 0.5}]", "for GPUs"),
            ("[{\"device\": \"cuda\", \"memory_share\": 1.5}]", "at most 1"),
            ("[{\"device\": \"cuda\", \"memory_share\": 0.5, \"memory_bytes_max\": 1}]", "not both"),
            ("7", "a list of devices"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(what), "{json}: {error}");
        }
    }
}
