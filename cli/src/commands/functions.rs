//! `weir functions`.

use crate::commands::CommandContext;
use crate::commands::alias::{self, AliasArgs};
use crate::commands::canary;
use crate::commands::collection::{Collection, NameArgs, RemoveArgs, ShowArgs};
use crate::commands::shadow;
use crate::output::{age, size, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use weir_types::FunctionKind;
use weir_types::api::{Function, FunctionVersion, ShadowReport};

/// List, show and remove functions
///
/// Examples:
///   weir functions                  # list all functions
///   weir functions show hello       # manifest, limits and versions of one function
///   weir functions versions hello
///   weir functions alias hello stable 3
///   weir functions rm hello
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct FunctionsArgs {
    #[command(subcommand)]
    action: Option<FunctionAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum FunctionAction {
    /// List all functions (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Show a function's permissions, limits and versions
    Show(ShowArgs),
    /// List a function's versions
    Versions(NameArgs),
    /// Give a version another name, such as stable, or list the aliases
    Alias(AliasArgs),
    /// Remove a function with all its versions, or one inactive version
    #[command(visible_alias = "delete")]
    Rm(RemoveArgs),
}

pub(crate) fn run(args: FunctionsArgs, context: &CommandContext) -> Result<()> {
    let functions = Collection::open("functions", &args.client, context)?;
    match args.action.unwrap_or(FunctionAction::List) {
        FunctionAction::List => functions.list(list),
        FunctionAction::Show(args) => show(&args, &functions),
        FunctionAction::Versions(NameArgs { name }) => functions.list_versions(&name, version_list),
        FunctionAction::Alias(args) => alias::run(&args, &functions),
        FunctionAction::Rm(args) => functions.remove(&args),
    }
}

fn show(ShowArgs { name, version }: &ShowArgs, functions: &Collection) -> Result<()> {
    if let Some(version) = *version {
        let version: FunctionVersion = functions.get_version(name, version)?;
        return functions.output.result(&version, |version| details(version, None));
    }
    let function: Function = functions.get(name)?;
    let shadow = shadow::fetch(&functions.client, functions.segment, name, function.shadow)?;
    functions
        .output
        .result(&function, |function| details(&function.active, Some((function, shadow.as_ref()))))
}

/// Display name of a function kind.
pub(crate) fn kind(kind: FunctionKind) -> &'static str {
    match kind {
        FunctionKind::Http02 => "wasi:http 0.2",
        FunctionKind::Http03 => "wasi:http 0.3",
        FunctionKind::Tensor => "tensor",
    }
}

/// Describes the response cache of a function or model.
pub(crate) fn cache(ttl_ms: Option<u64>) -> String {
    ttl_ms.map_or_else(
        || "no answers are kept".to_owned(),
        |ttl_ms| format!("answers are kept for {ttl_ms} ms"),
    )
}

fn list(functions: &[Function]) -> String {
    if functions.is_empty() {
        return "no functions are deployed; `weir deploy NAME FILE.wasm` deploys one".into();
    }
    let rows = functions.iter().map(|Function { active, canary, .. }| {
        let models: Vec<String> = active.manifest.models.iter().map(ToString::to_string).collect();
        let models = if models.is_empty() { "-".into() } else { models.join(", ") };
        [
            active.name.to_string(),
            canary::version_in_list(active.version, *canary),
            kind(active.kind).to_owned(),
            size(active.component_bytes),
            models,
            age(active.deployed_at_ms),
        ]
    });
    table(["NAME", "VERSION", "KIND", "SIZE", "MODELS", "DEPLOYED"], rows)
}

fn version_list(versions: &[FunctionVersion]) -> String {
    let rows = versions.iter().map(|version| {
        [
            format!("{}{}", version.version, if version.active { " (active)" } else { "" }),
            kind(version.kind).to_owned(),
            size(version.component_bytes),
            age(version.deployed_at_ms),
            version.digest.to_string()[..12].to_owned(),
        ]
    });
    table(["VERSION", "KIND", "SIZE", "DEPLOYED", "SHA-256"], rows)
}

fn details(function: &FunctionVersion, all: Option<(&Function, Option<&ShadowReport>)>) -> String {
    let list = |items: Vec<String>| if items.is_empty() { "-".to_owned() } else { items.join(", ") };
    let manifest = &function.manifest;
    let mut facts = vec![
        ("name", function.name.to_string()),
        ("tenant", function.tenant.to_string()),
        ("version", format!("{}{}", function.version, if function.active { " (active)" } else { "" })),
        ("kind", kind(function.kind).to_owned()),
        ("size", size(function.component_bytes)),
        ("sha-256", function.digest.to_string()),
        ("deployed", format!("{} ({})", time(function.deployed_at_ms), age(function.deployed_at_ms))),
        ("models", list(manifest.models.iter().map(ToString::to_string).collect())),
        ("env", list(function.env_names.clone())),
        ("outbound", list(manifest.outbound_hosts.clone())),
        ("idempotent", manifest.idempotent.to_string()),
        ("cache", cache(manifest.cache_ttl_ms)),
        ("instances", if manifest.reuse.is_some() { "reused" } else { "fresh for each call" }.to_owned()),
    ];
    facts.extend(manifest.public.then(|| ("public", format!("/fn/{}:{}/", function.tenant, function.name))));
    facts.extend(manifest.slo_ms.map(|ms| ("slo", format!("{ms} ms"))));
    facts.extend(manifest.cost_slo.map(|cost| ("cost slo", cost.to_string())));
    if let Some((all, shadow)) = all {
        facts.push(("versions", list(all.versions.iter().map(ToString::to_string).collect())));
        facts.extend(all.canary.map(|canary| ("canary", canary::share(canary, "calls"))));
        let lines = shadow.map(|shadow| shadow::lines(shadow, "calls")).unwrap_or_default();
        facts.extend(["shadow"].into_iter().chain(std::iter::repeat("")).zip(lines));
        facts.extend(alias::on_one_line(&all.aliases).map(|aliases| ("aliases", aliases)));
    }
    let facts: String = facts.iter().map(|(name, value)| format!("{name:<13}{value}\n")).collect();
    let reuse = manifest.reuse.as_ref();
    let reuse = reuse.map_or_else(String::new, |reuse| format!("\nreuse\n{}", numbers(reuse)));
    format!("{facts}{reuse}\nlimits\n{}", numbers(&manifest.limits))
}

/// Formats a struct of numbers, one field per line.
fn numbers(of: &impl serde::Serialize) -> String {
    let Ok(serde_json::Value::Object(numbers)) = serde_json::to_value(of) else {
        return String::new();
    };
    numbers
        .iter()
        .map(|(name, value)| format!("  {name:<22}{}\n", limit(name, value.as_u64().unwrap_or(0))))
        .collect()
}

/// Formats a limit with the unit from its name.
fn limit(name: &str, value: u64) -> String {
    if name.ends_with("_bytes") {
        size(value)
    } else if name.ends_with("_ms") {
        format!("{value} ms")
    } else {
        value.to_string()
    }
}
