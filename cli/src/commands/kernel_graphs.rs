//! `weir kernel-graphs`.

mod bundle;

use crate::client::UploadReader;
use crate::commands::CommandContext;
use crate::commands::collection::{Collection, RemoveArgs, ShowArgs, VersionArgs};
use crate::commands::models::{on_device, query, removed, restored, signature};
use crate::output::{age, size, table, time};
use crate::project::not_visible;
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use serde_json::json;
use std::path::PathBuf;
use weir_types::Name;
use weir_types::api::{Model, ModelOnDevice, ModelPushed, ModelVersion};

/// Push, list, show and remove kernel graphs: custom CUDA kernels, called like models
///
/// A kernel graph is a folder with graph.json and the sources of its kernels, *.cu and *.ptx.
///
/// Examples:
///   weir kernel-graphs check examples/kernel-graphs/jacobi         # validate without a node
///   weir kernel-graphs push jacobi examples/kernel-graphs/jacobi   # push the next version
///   weir kernel-graphs                                             # list all kernel graphs
///   weir kernel-graphs show jacobi                                 # inputs and outputs
///   weir kernel-graphs rollback jacobi
///   weir kernel-graphs rm jacobi
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct KernelGraphsArgs {
    #[command(subcommand)]
    action: Option<KernelGraphAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum KernelGraphAction {
    /// List all kernel graphs (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Check a kernel graph without a node: its document, and its kernels if they are PTX
    Check {
        /// Folder of the kernel graph, or a JSON file with the document and the sources
        folder: PathBuf,
    },
    /// Push a kernel graph; the node compiles CUDA C if it has NVRTC
    Push {
        /// Name of the kernel graph for requests and functions
        name: Name,
        /// Folder of the kernel graph, or a JSON file with the document and the sources
        folder: PathBuf,
        /// Version number [default: the next]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
        /// Latency objective of a direct run, in milliseconds
        #[arg(long, value_name = "MS")]
        slo_ms: Option<u64>,
        /// Push the kernel graph even if it has other inputs or outputs than the newest version
        #[arg(long)]
        allow_signature_change: bool,
    },
    /// Show a kernel graph's inputs and outputs
    Show(ShowArgs),
    /// Push an earlier version again, as the newest
    Rollback(VersionArgs),
    /// Remove a kernel graph with all its versions, or one version
    #[command(visible_alias = "delete")]
    Rm(RemoveArgs),
}

pub(crate) fn run(args: KernelGraphsArgs, context: &CommandContext) -> Result<()> {
    let output = context.output;
    let action = args.action.unwrap_or(KernelGraphAction::List);
    if let KernelGraphAction::Check { folder } = &action {
        let checked = bundle::check(folder)?;
        return output.result(&json!({ "folder": folder, "checked": checked }), |_| checked.clone());
    }
    let graphs = Collection::open("kernel-graphs", &args.client, context)?;
    match action {
        KernelGraphAction::List | KernelGraphAction::Check { .. } => graphs.list(list),
        KernelGraphAction::Push { name, folder, version, slo_ms, allow_signature_change } => {
            let file = bundle::pack(&folder)?;
            for source in bundle::left_out(&folder) {
                output.note(format!(
                    "{source} is not sent, because its PTX is; remove the PTX to let the node compile the source"
                ));
            }
            let version = version.map_or_else(String::new, |version| format!("/versions/{version}"));
            let query = query(&[
                ("allow_signature_change", allow_signature_change.then(|| "true".to_owned())),
                ("slo_ms", slo_ms.map(|slo_ms| slo_ms.to_string())),
            ]);
            let mut upload = UploadReader::open(
                file.path(),
                output,
                &format!("sending {name}"),
                "compiling and checking it",
            )?;
            let path = format!("{}{version}{query}", graphs.path(&name));
            let pushed: ModelPushed = graphs.client.put(&path, &format!("push {name}"), &[], &mut upload)?;
            drop(upload);
            output.result(&pushed, |ModelPushed { model, removed_versions, not_visible_on, .. }| {
                let name = &model.name;
                let version = model.version;
                let signature = signature(&model.signature);
                format!(
                    "pushed {name}:{version}\n{signature}{}{}{}",
                    removed(removed_versions),
                    too_small(model),
                    not_visible(not_visible_on)
                )
            })
        }
        KernelGraphAction::Show(args) => graphs.show(&args, with_versions, details),
        KernelGraphAction::Rollback(args) => graphs.roll_back(&args, restored),
        KernelGraphAction::Rm(args) => graphs.remove(&args),
    }
}

fn with_versions(graph: &Model) -> String {
    let versions: Vec<String> = graph.versions.iter().map(ToString::to_string).collect();
    format!("{}versions     {}\n", details(&graph.active), versions.join(", "))
}

fn list(graphs: &[Model]) -> String {
    if graphs.is_empty() {
        return "no kernel graphs; `weir kernel-graphs push NAME FOLDER` adds one".into();
    }
    let rows = graphs.iter().map(|Model { active, versions, .. }| {
        [
            active.name.to_string(),
            active.version.to_string(),
            versions.len().to_string(),
            if active.resident { "yes" } else { "no" }.to_owned(),
            age(active.pushed_at_ms),
        ]
    });
    table(["NAME", "NEWEST", "VERSIONS", "LOADED", "PUSHED"], rows)
}

fn details(graph: &ModelVersion) -> String {
    let mut facts = vec![
        ("name", graph.name.to_string()),
        ("tenant", graph.tenant.to_string()),
        ("version", graph.version.to_string()),
        ("size", format!("{}, code and constants {}", size(graph.model_bytes), size(graph.weight_bytes))),
        ("sha-256", graph.digest.to_string()),
        ("pushed", format!("{} ({})", time(graph.pushed_at_ms), age(graph.pushed_at_ms))),
        ("loaded", if graph.resident { "yes" } else { "no" }.to_owned()),
    ];
    facts.extend(graph.manifest.slo_ms.map(|ms| ("slo", format!("{ms} ms"))));
    let facts: String = facts.iter().map(|(name, value)| format!("{name:<13}{value}\n")).collect();
    let devices: String = on_gpus(graph).map(on_device).collect();
    facts + &devices + &signature(&graph.signature)
}

/// State of the graph on GPUs. Kernel graphs do not run on the CPU.
fn on_gpus(graph: &ModelVersion) -> impl Iterator<Item = &ModelOnDevice> {
    graph.devices.iter().filter(|known| known.device != "cpu")
}

/// The GPUs that cannot run the graph, one per line.
fn too_small(graph: &ModelVersion) -> String {
    on_gpus(graph).filter(|known| known.why_not.is_some()).map(on_device).collect()
}
