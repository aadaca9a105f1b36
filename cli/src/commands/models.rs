//! `weir models`.

mod copies;
mod profile;
mod pull;
mod push;
mod run;
mod sync;
mod upload_settings;

use crate::commands::CommandContext;
use crate::commands::alias::{self, AliasArgs};
use crate::commands::canary;
use crate::commands::collection::{Collection, RemoveArgs, ShowArgs, VersionArgs};
use crate::commands::functions::cache;
use crate::commands::shadow;
use crate::output::{age, duration, size, table, time};
use crate::project::old_versions;
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use copies::Copies;
use push::PushArgs;
use std::time::Duration;
use weir_types::api::{Model, ModelOnDevice, ModelRuns, ModelVersion, ShadowReport, VersionRequest};
use weir_types::{Name, Port, RunningMean, Signature, Version};

/// Push, list, show and remove models
///
/// Examples:
///   weir models push digits digits.onnx      # push the next version
///   weir models push birds birds.zip --labels birds.txt
///   weir models pull hf://OWNER/NAME         # push a model from a hub
///   weir models sync model_repository        # push a folder in Triton's layout
///   weir models                              # list all models
///   weir models show digits                  # inputs, outputs and measured times
///   weir models run digits -d @request.json  # one inference
///   weir models profile digits               # measure threads, batch sizes and concurrency
///   weir models capacity digits --rate 200 --slo-ms 10
///   weir models push digits digits.onnx --canary 10 --promote-after 5m
///   weir models rollback digits              # end the canary, or restore the version before
///   weir models alias digits stable 3        # requests may name digits:stable
///   weir models release digits --version 1    # end a quarantine
///   weir models rm digits --version 1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    action: Option<ModelAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum ModelAction {
    /// List all models (the default action)
    #[command(visible_alias = "ls")]
    List,
    Push(PushArgs),
    Pull(pull::PullArgs),
    Sync(sync::SyncArgs),
    /// Show a model's inputs, outputs and measured times
    Show(ShowArgs),
    Run(run::RunArgs),
    /// Measure a model with different threads, batch sizes and concurrency, on generated inputs;
    /// Ctrl-C stops it
    Profile(profile::ProfileArgs),
    /// Choose a configuration and its number of instances for a request rate and a latency limit,
    /// by the measurements of `weir models profile`
    Capacity(profile::CapacityArgs),
    /// Make the canary or another version of a model its active version
    Promote {
        /// Name of the model
        name: Name,
        /// Version to promote [default: the canary]
        version: Option<u32>,
    },
    /// End the canary or the shadow of a model, or push an earlier version again, as the newest
    Rollback {
        /// Name of the model
        name: Name,
        /// Version to restore [default: the version that was active before; with a canary, the
        /// active one stays]
        #[arg(long, value_name = "VERSION")]
        to: Option<u32>,
    },
    /// Give a version another name, such as stable, or list the aliases
    Alias(AliasArgs),
    /// End the quarantine of a version that ended its worker process repeatedly
    Release(ReleaseArgs),
    /// Remove a model with all its versions, or one version
    #[command(visible_alias = "delete")]
    Rm(RemoveArgs),
}

#[derive(Debug, clap::Args)]
struct ReleaseArgs {
    /// Name of the model
    name: Name,
    /// Version to release [default: the active one]
    #[arg(long, value_name = "N")]
    version: Option<u32>,
}

pub(crate) fn run(args: ModelsArgs, context: &CommandContext) -> Result<()> {
    let models = Collection::open("models", &args.client, context)?;
    match args.action.unwrap_or(ModelAction::List) {
        ModelAction::List => models.list(list),
        ModelAction::Push(args) => push::run(&args, &models),
        ModelAction::Pull(args) => pull::run(args, &models),
        ModelAction::Sync(args) => sync::run(&args, models),
        ModelAction::Show(args) => show(&args, &models),
        ModelAction::Run(args) => run::run(&args, &models.client, context),
        ModelAction::Profile(args) => profile::profile(args, &models.client, context),
        ModelAction::Capacity(args) => profile::capacity(&args, &models.client, context),
        ModelAction::Promote { name, version } => promote(&models, &name, version),
        ModelAction::Rollback { name, to } => roll_back(&models, name, to),
        ModelAction::Alias(args) => alias::run(&args, &models),
        ModelAction::Release(args) => release(&models, &args),
        ModelAction::Rm(args) => models.remove(&args),
    }
}

/// The line about versions that a push removed; empty if there are none.
pub(crate) fn removed(versions: &[Version]) -> String {
    if versions.is_empty() { String::new() } else { format!("removed {}\n", old_versions(versions)) }
}

/// The result of a rollback.
pub(crate) fn restored(now: &ModelVersion) -> String {
    format!("{}:{} restores the earlier version", now.name, now.version)
}

fn promote(models: &Collection, name: &Name, version: Option<u32>) -> Result<()> {
    let path = format!("{}/promote", models.path(name));
    let request = VersionRequest { version: version.map(Version) };
    let now: Model = models.client.post(&path, &format!("promote a version of {name}"), &request)?;
    models.output.result(&now, is_at)
}

fn roll_back(models: &Collection, name: Name, to: Option<u32>) -> Result<()> {
    let before = models.get::<Model>(&name)?;
    let ends_role = to.is_none() && (before.canary.is_some() || before.shadow.is_some());
    models.roll_back(&VersionArgs { name, version: to }, |now: &ModelVersion| {
        if ends_role { format!("{} is at version {} now", now.name, now.version) } else { restored(now) }
    })
}

/// The active version after a change.
pub(super) fn is_at(model: &Model) -> String {
    format!("{} is at version {} now", model.active.name, model.active.version)
}

fn show(ShowArgs { name, version }: &ShowArgs, models: &Collection) -> Result<()> {
    if let Some(version) = *version {
        let model: ModelVersion = models.get_version(name, version)?;
        let copies = Copies::count(&models.client, &model);
        let is_active = models.get::<Model>(name)?.active.version == model.version;
        return models.output.result(&model, |model| details(model, is_active, copies));
    }
    let model: Model = models.get(name)?;
    let copies = Copies::count(&models.client, &model.active);
    let shadow = shadow::fetch(&models.client, models.segment, name, model.shadow)?;
    models.output.result(&model, |model| with_versions(model, copies, shadow.as_ref()))
}

fn with_versions(model: &Model, copies: Option<Copies>, shadow: Option<&ShadowReport>) -> String {
    let versions: Vec<String> = model.versions.iter().map(ToString::to_string).collect();
    let canary = model.canary.map(|canary| format!("canary       {}\n", canary::share(canary, "runs")));
    let details = details(&model.active, true, copies);
    let aliases = alias::on_one_line(&model.aliases).map(|aliases| format!("aliases      {aliases}\n"));
    let canary = canary.unwrap_or_default();
    let lines = shadow.map(|shadow| shadow::lines(shadow, "inferences")).unwrap_or_default();
    let lines = ["shadow"].into_iter().chain(std::iter::repeat("")).zip(lines);
    let shadow: String = lines.map(|(label, line)| format!("{label:<13}{line}\n")).collect();
    format!("{details}versions     {}\n{canary}{shadow}{}", versions.join(", "), aliases.unwrap_or_default())
}

fn release(models: &Collection, ReleaseArgs { name, version }: &ReleaseArgs) -> Result<()> {
    let version = match *version {
        Some(version) => version,
        None => models.get::<Model>(name)?.active.version.0,
    };
    let path = format!("{}/release", models.version_path(name, version));
    let released: ModelVersion = models.client.post(&path, &format!("release {name}:{version}"), &())?;
    models.output.result(&released, |_| format!("released {name}:{version} from its quarantine"))
}

/// Builds a query from the values that are set; empty if there are none.
pub(crate) fn query(given: &[(&str, Option<String>)]) -> String {
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
        return "no models; `weir models push NAME FILE.onnx` adds one".into();
    }
    let rows = models.iter().map(|Model { active, versions, canary, .. }| {
        [
            active.name.to_string(),
            canary::version_in_list(active.version, *canary),
            versions.len().to_string(),
            size(active.model_bytes),
            if active.resident { "yes" } else { "no" }.to_owned(),
            batching(active, active.manifest.batching.mode),
            age(active.pushed_at_ms),
        ]
    });
    table(["NAME", "VERSION", "VERSIONS", "SIZE", "RESIDENT", "BATCHING", "PUSHED"], rows)
}

/// Inputs and outputs, one per line.
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

/// The batching setting, or a note that the model has no batch dimension.
fn batching(model: &ModelVersion, set: impl std::fmt::Display) -> String {
    if model.signature.has_batch_dimension() { set.to_string() } else { "no batch dimension".to_owned() }
}

fn details(model: &ModelVersion, is_active: bool, copies: Option<Copies>) -> String {
    let slots = model.manifest.slots.map_or_else(|| "the node chooses".into(), |slots| slots.to_string());
    let mut facts = vec![
        ("name", model.name.to_string()),
        ("tenant", model.tenant.to_string()),
        ("version", format!("{}{}", model.version, if is_active { " (active)" } else { "" })),
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
    facts
        .extend(model.manifest.keep_alive_ms.map(|ms| ("keep alive", format!("{ms} ms after its last use"))));
    let copies = copies.map(Copies::text);
    let required = Some(model.manifest.copies_min).filter(|required| *required > 0);
    let copies = copies.or_else(|| required.map(|required| format!("{required} required")));
    facts.extend(copies.map(|copies| ("copies", copies)));
    facts.extend(model.manifest.autosize.map(|autosize| ("autosize", autosize.to_string())));
    facts.extend(model.manifest.slo_ms.map(|ms| ("slo", format!("{ms} ms"))));
    facts.extend(model.manifest.cost_slo.map(|cost| ("cost slo", cost.to_string())));
    facts
        .extend(model.manifest.labels.iter().map(|(output, labels)| ("labels", push::shown(output, labels))));
    let facts: String = facts.iter().map(|(name, value)| format!("{name:<13}{value}\n")).collect();
    let devices: String = model.devices.iter().map(on_device).collect();
    facts + &devices + &signature(&model.signature)
}

/// Describes a model's state and measurements on one device.
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

/// The devices that cannot run a model, one per line.
fn lacking(model: &ModelVersion) -> String {
    model.devices.iter().filter(|known| known.why_not.is_some()).map(on_device).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of measured nanoseconds")]
fn time_of(mean: &RunningMean) -> String {
    let time = Duration::from_nanos(mean.mean as u64);
    let time = if time >= Duration::from_secs(10) { duration(time) } else { format!("{time:.2?}") };
    format!("{time} (mean of {})", mean.count)
}
