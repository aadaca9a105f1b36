//! Reads the settings in a model's `config.pbtxt`.
//!
//! Triton's format is the message `ModelConfig` of
//! <https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto>.

use super::text_format::{Field, Message, Value, parse};
use std::collections::BTreeSet;
use std::str::FromStr;
use weir_types::{Batching, BatchingMode, DeviceChoice, ModelManifest};

/// The model file of a version, unless `default_model_filename` states another.
const FILE_DEFAULT: &str = "model.onnx";

/// Settings that change nothing here: the node decides them from measurements, or has settings for
/// all models.
const WITHOUT_EFFECT: [&str; 9] = [
    "batch_input",
    "batch_output",
    "cc_model_filenames",
    "metric_tags",
    "model_metrics",
    "model_warmup",
    "optimization",
    "parameters",
    "response_cache",
];

/// The settings of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepositoryConfig {
    /// Name of the model file, or of a folder with it, in the folder of a version.
    pub(super) file: String,
    pub(super) versions: VersionPolicy,
    /// The serving settings, without labels.
    pub(super) manifest: ModelManifest,
    /// Outputs with the files of their labels.
    pub(super) labels: Vec<(String, String)>,
    /// Settings of the file that have no effect, or not their whole effect.
    pub(super) without_effect: BTreeSet<String>,
}

/// The versions to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VersionPolicy {
    /// The versions with the highest numbers.
    Latest(usize),
    All,
    Specific(BTreeSet<u32>),
}

impl Default for RepositoryConfig {
    fn default() -> Self {
        Self {
            file: FILE_DEFAULT.to_owned(),
            versions: VersionPolicy::Latest(1),
            manifest: ModelManifest::default(),
            labels: Vec::new(),
            without_effect: BTreeSet::new(),
        }
    }
}

impl RepositoryConfig {
    /// Reads the file `text` of the model in the folder `folder`.
    pub(super) fn parse(text: &str, folder: &str) -> Result<Self, String> {
        let mut config = Self::default();
        let mut groups = Vec::new();
        for field in parse(text)?.0 {
            config.set(&field, folder, &mut groups).map_err(|why| format!("line {}: {why}", field.line))?;
        }
        config.place(&groups);
        config.fit_batches();
        config.manifest.batching.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    fn set(&mut self, field: &Field, folder: &str, groups: &mut Vec<InstanceGroup>) -> Result<(), String> {
        match &*field.name {
            "name" => {
                let name = field.text()?;
                if name != folder {
                    return Err(format!("the name is {name:?}, but the folder is {folder:?}"));
                }
            }
            "platform" | "backend" => match field.text()? {
                "" | "onnxruntime" | "onnxruntime_onnx" => {}
                "ensemble" => {
                    return Err("an ensemble; a workflow runs several models: `weir workflows --help`".into());
                }
                other => {
                    return Err(format!(
                        "{} is {other:?}, and a node serves ONNX models: \"onnxruntime\"",
                        field.name
                    ));
                }
            },
            "ensemble_scheduling" => {
                return Err("an ensemble; a workflow runs several models: `weir workflows --help`".into());
            }
            "sequence_batching" => {
                return Err("sequence_batching is not supported: requests are independent".into());
            }
            "model_transaction_policy" => {
                for inner in field.message()? {
                    if inner.name == "decoupled" && inner.bool()? {
                        return Err("decoupled models are not supported".into());
                    }
                }
            }
            "default_model_filename" => match field.text()? {
                "" => {}
                name => self.file = file_name(name)?,
            },
            "max_batch_size" => match field.number::<u32>()? {
                0 | 1 => self.manifest.batching.mode = BatchingMode::Off,
                size => {
                    if size > Batching::SIZE_MAX_CAP {
                        self.without_effect.insert("max_batch_size".to_owned());
                    }
                    self.manifest.batching.size_max = Some(size.min(Batching::SIZE_MAX_CAP));
                }
            },
            "dynamic_batching" => self.batch(field.message()?)?,
            "instance_group" => groups.push(self.group(field.message()?)?),
            "version_policy" => self.versions = version_policy(field.message()?)?,
            "output" => self.output(field.message()?)?,
            "input" => {
                let fields = field.message()?;
                self.note_ports("input", fields);
            }
            name if WITHOUT_EFFECT.contains(&name) => {
                self.without_effect.insert(name.to_owned());
            }
            name => return Err(format!("unsupported setting {name}")),
        }
        Ok(())
    }

    fn batch(&mut self, fields: &[Field]) -> Result<(), String> {
        for field in fields {
            match &*field.name {
                "preferred_batch_size" => self.manifest.batching.preferred_sizes.push(field.number()?),
                "max_queue_delay_microseconds" => {
                    self.manifest.batching.queue_delay_us_max = field.number()?;
                }
                name => {
                    self.without_effect.insert(format!("dynamic_batching.{name}"));
                }
            }
        }
        Ok(())
    }

    fn group(&mut self, fields: &[Field]) -> Result<InstanceGroup, String> {
        let mut group = InstanceGroup { count: None, on_cpu: false };
        for field in fields {
            match &*field.name {
                "count" => group.count = Some(field.number()?),
                "kind" => match field.scalar()? {
                    // A model without a free GPU runs on the CPU.
                    "KIND_AUTO" | "KIND_MODEL" | "KIND_GPU" => {}
                    "KIND_CPU" => group.on_cpu = true,
                    other => return Err(format!("unknown kind {other} of an instance_group")),
                },
                "name" => {}
                name => {
                    self.without_effect.insert(format!("instance_group.{name}"));
                }
            }
        }
        Ok(group)
    }

    /// Sets the devices, and the number of concurrent runs on each.
    fn place(&mut self, groups: &[InstanceGroup]) {
        if !groups.is_empty() && groups.iter().all(|group| group.on_cpu) {
            self.manifest.device = DeviceChoice::Cpu;
        }
        if groups.iter().any(|group| group.count.is_some()) {
            // A count is that of each device of its group.
            self.manifest.slots = groups.iter().map(|group| group.count.unwrap_or(1).max(1)).max();
        }
    }

    /// Makes the batching settings fit together and the limits of a node. Notes those that change.
    fn fit_batches(&mut self) {
        let batching = &mut self.manifest.batching;
        let largest = batching.preferred_sizes.iter().copied().max();
        if batching.size_max.is_none() && batching.mode != BatchingMode::Off {
            batching.size_max = largest.map(|size| size.min(Batching::SIZE_MAX_CAP));
        }
        let sizes = 1..=batching.size_max();
        let given = batching.preferred_sizes.len();
        batching.preferred_sizes.retain(|size| sizes.contains(size));
        let delay_us = batching.queue_delay_us_max;
        batching.queue_delay_us_max = delay_us.min(Batching::QUEUE_DELAY_US_CAP);
        if batching.preferred_sizes.len() < given {
            self.without_effect.insert("dynamic_batching.preferred_batch_size".to_owned());
        }
        if self.manifest.batching.queue_delay_us_max < delay_us {
            self.without_effect.insert("dynamic_batching.max_queue_delay_microseconds".to_owned());
        }
    }

    /// Notes settings of inputs and outputs that change what clients send in Triton. Names, types and
    /// shapes are in the model file.
    fn note_ports(&mut self, kind: &str, fields: &[Field]) {
        let with_effect = ["reshape", "allow_ragged_batch", "format", "is_non_linear_format_io"];
        let given = fields.iter().filter(|field| with_effect.contains(&&*field.name));
        self.without_effect.extend(given.map(|field| format!("{kind}.{}", field.name)));
    }

    fn output(&mut self, fields: &[Field]) -> Result<(), String> {
        self.note_ports("output", fields);
        let text = |name: &str| fields.iter().find(|field| field.name == name).map(Field::text).transpose();
        if let Some(file) = text("label_filename")?.filter(|file| !file.is_empty()) {
            let output = text("name")?.ok_or("an output with label_filename needs a name")?;
            self.labels.push((output.to_owned(), file_name(file)?));
        }
        Ok(())
    }
}

struct InstanceGroup {
    count: Option<u32>,
    on_cpu: bool,
}

fn version_policy(fields: &[Field]) -> Result<VersionPolicy, String> {
    let [field] = fields else { return Err("version_policy needs one of latest, all and specific".into()) };
    let inner = field.message()?;
    match &*field.name {
        "all" => Ok(VersionPolicy::All),
        "latest" => match inner.iter().find(|field| field.name == "num_versions") {
            Some(count) => Ok(VersionPolicy::Latest(count.number::<usize>()?.max(1))),
            None => Ok(VersionPolicy::Latest(1)),
        },
        "specific" => {
            let versions = inner.iter().filter(|field| field.name == "versions");
            versions.map(Field::number).collect::<Result<_, _>>().map(VersionPolicy::Specific)
        }
        other => Err(format!("unknown version_policy {other}")),
    }
}

/// A name of a file in the model's folder, not a path to other files.
fn file_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\']) {
        return Err(format!("{name:?} is not the name of a file in the model's folder"));
    }
    Ok(name.to_owned())
}

impl Field {
    fn text(&self) -> Result<&str, String> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(format!("{} is not a string", self.name)),
        }
    }

    fn scalar(&self) -> Result<&str, String> {
        match &self.value {
            Value::Scalar(scalar) => Ok(scalar),
            _ => Err(format!("{} is not a plain value", self.name)),
        }
    }

    fn number<T: FromStr>(&self) -> Result<T, String> {
        let scalar = self.scalar()?;
        scalar.parse().map_err(|_| format!("{} = {scalar} is not a number in its range", self.name))
    }

    fn bool(&self) -> Result<bool, String> {
        match self.scalar()? {
            "true" | "True" | "t" | "1" => Ok(true),
            "false" | "False" | "f" | "0" => Ok(false),
            other => Err(format!("{} = {other} is not true or false", self.name)),
        }
    }

    fn message(&self) -> Result<&[Self], String> {
        match &self.value {
            Value::Message(Message(fields)) => Ok(fields),
            _ => Err(format!("{} is not a message in {{}}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<RepositoryConfig, String> {
        RepositoryConfig::parse(text, "birds")
    }

    #[test]
    fn settings_of_triton_become_those_of_the_manifest() {
        let text = r#"
            name: "birds" platform: "onnxruntime_onnx" max_batch_size: 16
            input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
            output [ { name: "scores" dims: [ 200 ] label_filename: "birds.txt" }, { name: "other" } ]
            version_policy: { latest { num_versions: 2 } }
            dynamic_batching {
              preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 200 preserve_ordering: true
            }
            instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] }, { kind: KIND_GPU } ]
            optimization { cuda { graphs: true } }
        "#;
        let config = config(text).unwrap();
        assert_eq!(config.versions, VersionPolicy::Latest(2));
        assert_eq!(config.labels, [("scores".to_owned(), "birds.txt".to_owned())]);
        let without_effect = ["dynamic_batching.preserve_ordering", "instance_group.gpus", "optimization"];
        assert!(config.without_effect.iter().eq(&without_effect), "{:?}", config.without_effect);
        let ModelManifest { slots, device, batching, .. } = config.manifest;
        assert_eq!((slots, device, batching.size_max), (Some(2), DeviceChoice::Any, Some(16)));
        assert_eq!((batching.preferred_sizes, batching.queue_delay_us_max), (vec![4, 8], 200));
        assert_eq!(batching.mode, BatchingMode::Auto);
    }

    #[test]
    fn model_without_settings_has_those_of_a_push() {
        let empty = config("").unwrap();
        assert_eq!(empty, RepositoryConfig::default());
        assert_eq!(empty.file, "model.onnx");
        let single = config("max_batch_size: 0").unwrap();
        assert_eq!(single.manifest.batching.mode, BatchingMode::Off);
        let mixed = config("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }").unwrap();
        assert_eq!((mixed.manifest.device, mixed.manifest.slots), (DeviceChoice::Any, None));
        let cpu = config("instance_group { kind: KIND_CPU count: 4 }").unwrap();
        assert_eq!((cpu.manifest.device, cpu.manifest.slots), (DeviceChoice::Cpu, Some(4)));
    }

    #[test]
    fn batches_are_fitted_to_the_limits_of_a_node() {
        let fitted = |text: &str| {
            let RepositoryConfig { manifest, without_effect, .. } = config(text).unwrap();
            let Batching { size_max, preferred_sizes, queue_delay_us_max, .. } = manifest.batching;
            (size_max, preferred_sizes, queue_delay_us_max, without_effect.len())
        };
        let text = "dynamic_batching { preferred_batch_size: [ 16, 64 ] }";
        assert_eq!(fitted(text), (Some(64), vec![16, 64], 0, 0));
        let text = "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4, 8 ] }";
        assert_eq!(fitted(text), (Some(4), vec![4], 0, 1));
        let text = "max_batch_size: 5000 dynamic_batching { max_queue_delay_microseconds: 99999999 }";
        assert_eq!(fitted(text), (Some(1024), vec![], Batching::QUEUE_DELAY_US_CAP, 2));
        let reshaped = config("input { name: \"x\" reshape { shape: [ ] } }").unwrap();
        assert!(reshaped.without_effect.iter().eq(["input.reshape"]));
        assert_eq!(config("default_model_filename: \"\"").unwrap().file, "model.onnx");
    }

    #[test]
    fn version_policies_are_read() {
        let versions = |text: &str| config(text).map(|config| config.versions);
        assert_eq!(versions("version_policy: { all {} }"), Ok(VersionPolicy::All));
        assert_eq!(versions("version_policy { latest {} }"), Ok(VersionPolicy::Latest(1)));
        let specific = VersionPolicy::Specific([1, 3].into());
        assert_eq!(versions("version_policy { specific { versions: [ 1, 3 ] } }"), Ok(specific));
        assert!(
            versions("version_policy { newest {} }").unwrap_err().contains("unknown version_policy newest")
        );
    }

    #[test]
    fn settings_that_cannot_be_honoured_are_refused() {
        for (text, expected) in [
            ("name: \"cats\"", "line 1: the name is \"cats\", but the folder is \"birds\""),
            ("\nplatform: \"tensorrt_plan\"", "line 2: platform is \"tensorrt_plan\""),
            ("platform: \"ensemble\"", "a workflow runs several models"),
            ("ensemble_scheduling { }", "a workflow runs several models"),
            ("sequence_batching { }", "requests are independent"),
            ("model_transaction_policy { decoupled: true }", "decoupled"),
            ("default_model_filename: \"../x.onnx\"", "is not the name of a file"),
            ("output { name: \"y\" label_filename: \"/etc/passwd\" }", "is not the name of a file"),
            ("max_batch_size: -1", "max_batch_size = -1 is not a number in its range"),
            ("max_batch_size: \"8\"", "is not a plain value"),
            ("max_batch: 8", "unsupported setting max_batch"),
            ("instance_group { kind: KIND_TPU }", "unknown kind KIND_TPU"),
            ("name {", "line 1: the file ends inside a message"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
