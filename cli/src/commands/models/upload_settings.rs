//! Settings of a pushed model.

use super::push::LabelsFile;
use super::query;
use clap::builder::{PossibleValue, PossibleValuesParser};
use weir_types::{CACHE_TTL_MS_MAX, COPIES_MIN_MAX, Cost, KEEP_ALIVE_MS_MAX, Precision};

/// Options of commands that push a model.
#[derive(Debug, clap::Args)]
pub(super) struct ModelSettingsArgs {
    /// Maximum number of concurrent runs [default: the node chooses]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// Devices that may run the model: any, cpu or cuda (or gpu) [default: any]
    #[arg(long, value_name = "WHERE", value_parser = devices())]
    device: Option<String>,
    /// Precision on a GPU: fp32, tf32, fp16 or bf16; fp16 and bf16 take half the memory
    /// [default: tf32]
    #[arg(long, value_name = "TYPE")]
    precision: Option<Precision>,
    /// Latency objective of an inference, in milliseconds; requests that would miss it are
    /// rejected at admission
    #[arg(long = "slo-ms", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    slo_ms: Option<u64>,
    /// Maximum device cost of an inference, in the unit of the node's prices
    /// (scheduler.slo.prices)
    #[arg(long, value_name = "COST")]
    cost_slo: Option<Cost>,
    /// Batch queued requests: auto (if it is faster and does not change results), on (if it is
    /// faster) or off
    #[arg(long, value_name = "MODE", value_parser = ["auto", "on", "off"])]
    batching: Option<String>,
    /// Maximum batch size [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch_size_max: Option<u32>,
    /// Batch sizes to prefer when enough requests are queued
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    preferred_batch_sizes: Vec<u32>,
    /// Maximum time to hold a request back for a larger batch while the device is busy, in
    /// microseconds [default: 0]
    #[arg(long, value_name = "US")]
    queue_delay_us_max: Option<u64>,
    /// Input that masks padding [default: attention_mask, if the model has it]
    #[arg(long, value_name = "INPUT")]
    mask: Option<String>,
    /// Choose the number of concurrent runs and their threads for this latency objective, in
    /// milliseconds, at the current request rate; needs `weir models profile`
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    autosize_slo_ms: Option<u64>,
    /// Interval of that choice, in milliseconds [default: 10000]
    #[arg(long, value_name = "MS", requires = "autosize_slo_ms")]
    autosize_interval_ms: Option<u64>,
    /// Time to keep unneeded sessions, in milliseconds [default: 60000]
    #[arg(long, value_name = "MS", requires = "autosize_slo_ms")]
    autosize_keep_alive_ms: Option<u64>,
    /// Cache responses for N milliseconds, and return them for equal inferences
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CACHE_TTL_MS_MAX))]
    cache_ttl_ms: Option<u64>,
    /// Time after its last use at which the model leaves the memory of a device, in
    /// milliseconds [default: the node's models.keep_alive_ms on accelerators; on the CPU, the
    /// model stays until room is needed]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=KEEP_ALIVE_MS_MAX))]
    keep_alive_ms: Option<u64>,
    /// Keep the model in the memory of N devices of the cluster, loaded from the push on
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(COPIES_MIN_MAX)))]
    copies_min: Option<u32>,
    /// File with the labels of an output, one per line, for classification; OUTPUT is the output,
    /// if the model has several
    #[arg(long, value_name = "[OUTPUT=]FILE")]
    pub(super) labels: Vec<LabelsFile>,
    /// Push the model even if it has other inputs or outputs than the active version
    #[arg(long)]
    allow_signature_change: bool,
}

/// Values of `--device`. `fake` is for tests and for experiments with the scheduler.
fn devices() -> PossibleValuesParser {
    PossibleValuesParser::new([
        PossibleValue::new("any"),
        PossibleValue::new("cpu"),
        PossibleValue::new("cuda").alias("gpu"),
        PossibleValue::new("fake").hide(true),
    ])
}

impl ModelSettingsArgs {
    /// The query of a push with these settings, apart from the labels, and with those of its role.
    pub(super) fn query(&self, role: Vec<(&'static str, String)>) -> String {
        let text = |value: Option<u64>| value.map(|value| value.to_string());
        let sizes: Vec<String> = self.preferred_batch_sizes.iter().map(ToString::to_string).collect();
        let mut given = vec![
            ("allow_signature_change", self.allow_signature_change.then(|| "true".to_owned())),
            ("slots", text(self.slots.map(u64::from))),
            (
                "device",
                self.device.as_deref().map(|device| if device == "gpu" { "cuda" } else { device }.to_owned()),
            ),
            ("precision", self.precision.map(|precision| precision.to_string())),
            ("cache_ttl_ms", text(self.cache_ttl_ms)),
            ("keep_alive_ms", text(self.keep_alive_ms)),
            ("copies_min", text(self.copies_min.map(u64::from))),
            ("slo_ms", text(self.slo_ms)),
            ("cost_slo", self.cost_slo.map(|cost| cost.to_string())),
            ("autosize.slo_ms", text(self.autosize_slo_ms)),
            ("autosize.interval_ms", text(self.autosize_interval_ms)),
            ("autosize.keep_alive_ms", text(self.autosize_keep_alive_ms)),
            ("batching.mode", self.batching.clone()),
            ("batching.size_max", text(self.batch_size_max.map(u64::from))),
            ("batching.preferred_sizes", (!sizes.is_empty()).then(|| sizes.join(","))),
            ("batching.queue_delay_us_max", text(self.queue_delay_us_max)),
            // As JSON, so that a numeric name stays a string.
            ("batching.mask", self.mask.as_deref().map(|mask| serde_json::Value::from(mask).to_string())),
        ];
        given.extend(role.into_iter().map(|(name, value)| (name, Some(value))));
        query(&given)
    }
}
