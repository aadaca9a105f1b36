//! `weir models`.

mod profile;

use crate::client::Upload;
use crate::commands::functions::cache;
use crate::commands::{Context, remove};
use crate::output::{age, duration, size, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use std::path::PathBuf;
use std::time::Duration;
use weir_types::api::{Model, ModelOnDevice, ModelRuns, ModelVersion};
use weir_types::{CACHE_TTL_MS_MAX, Cost, Name, Port, Precision, RunningMean, Signature};

/// Push, list, show and remove models
///
/// Examples:
///   weir models push digits digits.onnx      # the next version
///   weir models                              # what is there
///   weir models show digits                  # its inputs, outputs and measured times
///   weir models profile digits               # measure it with more threads, batches and runs at once
///   weir models size digits --rate 200 --slo-ms 10
///   weir models rm digits --version 1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all models (also without any action)
    #[command(visible_alias = "ls")]
    List,
    /// Push a model: one ONNX file with its weights inside
    Push {
        /// What functions will open it as
        name: Name,
        /// The ONNX file
        file: PathBuf,
        /// The version [default: the next one]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        version: Option<u32>,
        /// Runs that may go on at once [default: the node chooses]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        slots: Option<u32>,
        /// Where it may run: any, cpu or cuda [default: any]
        #[arg(long, value_name = "WHERE", value_parser = ["any", "cpu", "cuda", "fake"])]
        device: Option<String>,
        /// What it computes in on a GPU: fp32, tf32, fp16 or bf16; the last two take half the memory [default: tf32]
        #[arg(long, value_name = "TYPE")]
        precision: Option<Precision>,
        /// How long an inference may take, in milliseconds: one that would take longer is turned away at once
        #[arg(long = "slo-ms", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
        slo_ms: Option<u64>,
        /// What the device time of an inference may cost, in the unit of the node's prices (slo.prices)
        #[arg(long, value_name = "COST")]
        cost_slo: Option<Cost>,
        /// Run requests that wait for it together: auto, where that changes no answers and pays; on, where it pays; off
        #[arg(long, value_name = "MODE", value_parser = ["auto", "on", "off"])]
        batching: Option<String>,
        /// Items in one run, at most [default: 32]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
        batch_size_max: Option<u32>,
        /// Sizes to bring runs to, where enough requests wait
        #[arg(long, value_name = "N,...", value_delimiter = ',')]
        preferred_batch_sizes: Vec<u32>,
        /// How long a request may be held back for others while the device is busy, in microseconds [default: 0]
        #[arg(long, value_name = "US")]
        queue_delay_us_max: Option<u64>,
        /// The input that tells what is there from padding [default: attention_mask, if it has that]
        #[arg(long, value_name = "INPUT")]
        mask: Option<String>,
        /// Have the node choose how many runs go on at once and with how many threads, so that they keep to so many milliseconds at the rate
        /// there is; needs `weir models profile`
        #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
        autosize_slo_ms: Option<u64>,
        /// How often that is chosen anew [default: 10000]
        #[arg(long, value_name = "MS", requires = "autosize_slo_ms")]
        autosize_interval_ms: Option<u64>,
        /// How long sessions that are not needed any more are kept [default: 60000]
        #[arg(long, value_name = "MS", requires = "autosize_slo_ms")]
        autosize_keep_alive_ms: Option<u64>,
        /// Keep answers for so many milliseconds, and give them to inferences that are equal instead of running those
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CACHE_TTL_MS_MAX))]
        cache_ttl_ms: Option<u64>,
    },
    /// Show one model: its inputs and outputs, and what it has been measured to cost
    Show {
        /// The model
        name: Name,
        /// One version of it [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
    /// Measure a model with more threads, larger batches and more runs at once, on inputs that are made up; Ctrl-C ends it
    Profile(profile::ProfileArgs),
    /// Choose, of what was measured, how many instances and of what kind serve a rate within a latency at the least memory
    Size(profile::SizeArgs),
    /// Remove a model with all its versions, or one version
    #[command(visible_alias = "delete")]
    Rm {
        /// The model
        name: Name,
        /// One version of it [default: all]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
}

pub(crate) fn run(args: ModelsArgs, context: &Context) -> Result<()> {
    let client = context.client(&args.client)?;
    let output = context.output;
    match args.action.unwrap_or(Action::List) {
        Action::List => {
            let models: Vec<Model> = client.get("/v1/models", "list the models")?;
            output.result(&models, |models| list(models))
        }
        Action::Push {
            name,
            file,
            version,
            slots,
            device,
            precision,
            slo_ms,
            cost_slo,
            batching,
            batch_size_max,
            preferred_batch_sizes,
            queue_delay_us_max,
            mask,
            autosize_slo_ms,
            autosize_interval_ms,
            autosize_keep_alive_ms,
            cache_ttl_ms,
        } => {
            let version = version.map_or_else(String::new, |version| format!("/versions/{version}"));
            let sizes: Vec<String> = preferred_batch_sizes.iter().map(ToString::to_string).collect();
            let query = query(&[
                ("slots", slots.map(|slots| slots.to_string())),
                ("device", device),
                ("precision", precision.map(|precision| precision.to_string())),
                ("cache_ttl_ms", cache_ttl_ms.map(|ttl_ms| ttl_ms.to_string())),
                ("slo_ms", slo_ms.map(|slo_ms| slo_ms.to_string())),
                ("cost_slo", cost_slo.map(|cost| cost.to_string())),
                ("autosize.slo_ms", autosize_slo_ms.map(|slo_ms| slo_ms.to_string())),
                ("autosize.interval_ms", autosize_interval_ms.map(|interval_ms| interval_ms.to_string())),
                ("autosize.keep_alive_ms", autosize_keep_alive_ms.map(|keep_ms| keep_ms.to_string())),
                ("batching.mode", batching),
                ("batching.size_max", batch_size_max.map(|size| size.to_string())),
                ("batching.preferred_sizes", (!sizes.is_empty()).then(|| sizes.join(","))),
                ("batching.queue_delay_us_max", queue_delay_us_max.map(|delay| delay.to_string())),
                // As JSON, so that it is text even where it looks like a number.
                ("batching.mask", mask.map(|mask| serde_json::Value::from(mask).to_string())),
            ]);
            let mut upload =
                Upload::open(&file, output, &format!("sending {name}"), "checking and optimising it")?;
            let path = format!("/v1/models/{name}{version}{query}");
            let pushed: ModelVersion = client.put(&path, &format!("push {name}"), &[], &mut upload)?;
            drop(upload);
            output.result(&pushed, |pushed| {
                let (name, version) = (&pushed.name, pushed.version);
                let (lacking, signature) = (lacking(pushed), signature(&pushed.signature));
                format!("pushed {name}:{version}\n{signature}{lacking}")
            })
        }
        Action::Show { name, version } => {
            let what = format!("show {name}");
            if let Some(version) = version {
                let model: ModelVersion =
                    client.get(&format!("/v1/models/{name}/versions/{version}"), &what)?;
                return output.result(&model, details);
            }
            let model: Model = client.get(&format!("/v1/models/{name}"), &what)?;
            output.result(&model, |model| {
                let versions: Vec<String> = model.versions.iter().map(ToString::to_string).collect();
                format!("{}versions     {}\n", details(&model.newest), versions.join(", "))
            })
        }
        Action::Profile(args) => profile::profile(args, &client, context),
        Action::Size(args) => profile::size(&args, &client, context),
        Action::Rm { name, version } => remove(&client, output, "models", &name, version),
    }
}

/// What is given, as a query; empty if nothing is.
fn query(given: &[(&str, Option<String>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in given {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { query } else { format!("?{query}") }
}

fn list(models: &[Model]) -> String {
    if models.is_empty() {
        return "no models are there; `weir models push NAME FILE.onnx` adds one".into();
    }
    let rows = models.iter().map(|Model { newest, versions }| {
        [
            newest.name.to_string(),
            newest.version.to_string(),
            versions.len().to_string(),
            size(newest.model_bytes),
            if newest.resident { "yes" } else { "no" }.to_owned(),
            batching(newest, newest.manifest.batching.mode),
            age(newest.pushed_at_ms),
        ]
    });
    table(["NAME", "NEWEST", "VERSIONS", "SIZE", "RESIDENT", "BATCHING", "PUSHED"], rows)
}

/// Inputs and outputs, one a line.
pub(crate) fn signature(signature: &Signature) -> String {
    let ports = |title: &'static str, ports: &[Port]| -> String {
        ports
            .iter()
            .enumerate()
            .map(|(i, port)| format!("{:<13}{port}\n", if i == 0 { title } else { "" }))
            .collect()
    };
    ports("inputs", &signature.inputs) + &ports("outputs", &signature.outputs)
}

/// What is set, unless it is of no use.
fn batching(model: &ModelVersion, set: impl std::fmt::Display) -> String {
    if model.signature.has_batch_dimension() { set.to_string() } else { "no batch dimension".to_owned() }
}

fn details(model: &ModelVersion) -> String {
    let slots = model.manifest.slots.map_or_else(|| "the node chooses".into(), |slots| slots.to_string());
    let mut facts = vec![
        ("name", model.name.to_string()),
        ("tenant", model.tenant.to_string()),
        ("version", model.version.to_string()),
        ("size", format!("{}, weights {}", size(model.model_bytes), size(model.weight_bytes))),
        ("sha-256", model.digest.to_string()),
        ("pushed", format!("{} ({})", time(model.pushed_at_ms), age(model.pushed_at_ms))),
        ("slots", slots),
        ("device", model.manifest.device.to_string()),
        ("precision", format!("{} on GPUs", model.manifest.precision)),
        ("batching", batching(model, &model.manifest.batching)),
        ("cache", cache(model.manifest.cache_ttl_ms)),
        ("resident", if model.resident { "yes" } else { "no" }.to_owned()),
    ];
    facts.extend(model.manifest.autosize.map(|autosize| ("autosize", autosize.to_string())));
    facts.extend(model.manifest.slo_ms.map(|ms| ("slo", format!("{ms} ms"))));
    facts.extend(model.manifest.cost_slo.map(|cost| ("cost slo", cost.to_string())));
    let facts: String = facts.iter().map(|(name, value)| format!("{name:<13}{value}\n")).collect();
    let devices: String = model.devices.iter().map(on_device).collect();
    facts + &devices + &signature(&model.signature)
}

/// What is known of a model on one device.
pub(crate) fn on_device(known: &ModelOnDevice) -> String {
    let ModelOnDevice { device, kind, why_not, resident, runs, profile } = known;
    let name = if device == kind { device.clone() } else { format!("{device} ({kind})") };
    if let Some(why) = why_not {
        return format!("on {name}: does not run there: {why}\n");
    }
    let mut facts = vec![if *resident { "resident" } else { "not resident" }.to_owned()];
    facts.extend((profile.resident_bytes > 0).then(|| format!("takes {}", size(profile.resident_bytes))));
    facts.extend(runs.map(|ModelRuns { threads, at_once_max, sessions }| {
        format!("at most {at_once_max} at once, threads {threads}, sessions {sessions}")
    }));
    let loads = profile.load_time_ns.iter();
    facts.extend(loads.map(|(tier, mean)| format!("load {} from {tier}", time_of(mean))));
    let runs = profile.run_time_ns.iter();
    facts.extend(runs.map(|(batch, mean)| format!("run {} at batch {batch}", time_of(mean))));
    let mut text = format!("on {name}: {}\n", facts.join(", "));
    if !profile.measured.is_empty() {
        let rows = profile::measured(&profile.measured);
        text.extend(rows.lines().map(|row| format!("  {row}\n")));
    }
    text
}

/// The devices that do not run a model, one a line.
fn lacking(model: &ModelVersion) -> String {
    model.devices.iter().filter(|known| known.why_not.is_some()).map(on_device).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of measured nanoseconds")]
fn time_of(mean: &RunningMean) -> String {
    let time = Duration::from_nanos(mean.mean as u64);
    let time = if time >= Duration::from_secs(10) { duration(time) } else { format!("{time:.2?}") };
    format!("{time} (mean of {})", mean.count)
}
