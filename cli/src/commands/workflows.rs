//! `weir workflows`.

use crate::commands::CommandContext;
use crate::commands::alias::{self, AliasArgs};
use crate::commands::collection::{Collection, NameArgs, RemoveArgs, ShowArgs, VersionArgs};
use crate::commands::models::signature;
use crate::error::Problem;
use crate::output::{OutputSettings, age, table, time};
use crate::settings::ClientArgs;
use crate::uploads::WorkflowUpload;
use anyhow::Result;
use clap::Subcommand;
use serde_json::json;
use std::path::{Path, PathBuf};
use weir_types::api::{StepHedge, Workflow, WorkflowStep, WorkflowVersion};
use weir_types::{Cost, Name};
use weir_workflow::{Document, Plan};

/// Deploy, list, show and remove workflows: graphs of models and tensor functions
///
/// Examples:
///   weir workflows check cascade.toml            # validate without a node
///   weir workflows deploy cascade cascade.toml   # deploy the next version
///   weir workflows deploy cascade cascade.toml --slo-ms 200
///   weir workflows                               # list all workflows
///   weir workflows show cascade                  # inputs, outputs and steps
///   weir workflows rollback cascade
///   weir workflows alias cascade stable 2
///   weir workflows rm cascade
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct WorkflowsArgs {
    #[command(subcommand)]
    action: Option<WorkflowAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum WorkflowAction {
    /// List all workflows (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Check a workflow without a node: its syntax, its edges, and the types that it declares
    Check {
        /// Workflow document, in TOML or JSON
        file: PathBuf,
    },
    /// Deploy a workflow; its steps stay at the current versions of their models and functions
    Deploy {
        /// Name of the workflow for requests and functions
        name: Name,
        /// Workflow document, in TOML or JSON
        file: PathBuf,
        /// Validate on the node without deploying
        #[arg(long)]
        dry_run: bool,
        /// Latency objective of each call, in milliseconds, instead of the objective in the
        /// document; calls that would miss it are rejected at admission
        #[arg(long = "slo-ms", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
        slo_ms: Option<u64>,
        /// Maximum device cost of each call, in the unit of the node's prices
        /// (scheduler.slo.prices), instead of the maximum in the document
        #[arg(long, value_name = "COST")]
        cost_slo: Option<Cost>,
    },
    /// Show a workflow's inputs, outputs and steps
    Show {
        #[command(flatten)]
        shown: ShowArgs,
        /// Print only the document, as it was deployed
        #[arg(long)]
        document: bool,
    },
    /// List a workflow's versions
    Versions(NameArgs),
    /// Activate an earlier version of a workflow, or any other version
    Rollback(VersionArgs),
    /// Give a version another name, such as stable, or list the aliases
    Alias(AliasArgs),
    /// Remove a workflow with all its versions, or one inactive version
    #[command(visible_alias = "delete")]
    Rm(RemoveArgs),
}

pub(crate) fn run(args: WorkflowsArgs, context: &CommandContext) -> Result<()> {
    let output = context.output;
    let action = args.action.unwrap_or(WorkflowAction::List);
    if let WorkflowAction::Check { file } = &action {
        return report_plan(file, output);
    }
    let workflows = Collection::open("workflows", &args.client, context)?;
    match action {
        WorkflowAction::List | WorkflowAction::Check { .. } => workflows.list(list),
        WorkflowAction::Deploy { name, file, dry_run, slo_ms, cost_slo } => {
            // Local checks report errors with the file's name, without a request to the node.
            check(&file)?;
            let document = std::fs::read_to_string(&file)
                .map_err(|error| Problem::new(format!("cannot read {}", file.display())).because(error))?;
            let upload = WorkflowUpload { name: &name, document: &document, slo_ms, cost_slo, dry_run };
            let deployed = upload.send(&workflows.client, output)?;
            output.result(&deployed, |deployed| {
                let workflow = &deployed.workflow;
                let what = match (dry_run, deployed.created) {
                    (true, _) => "would deploy",
                    (false, true) => "deployed",
                    (false, false) => "unchanged:",
                };
                format!("{what} {}:{}\n{}", workflow.name, workflow.version, signature(&workflow.signature))
            })
        }
        WorkflowAction::Show { shown, document: true } => {
            let version: WorkflowVersion = match shown.version {
                Some(version) => workflows.get_version(&shown.name, version)?,
                None => workflows.get::<Workflow>(&shown.name)?.active,
            };
            output.bytes(version.document.as_bytes())
        }
        WorkflowAction::Show { shown, document: false } => workflows.show(
            &shown,
            |workflow: &Workflow| details(&workflow.active, Some(workflow)),
            |version: &WorkflowVersion| details(version, None),
        ),
        WorkflowAction::Versions(NameArgs { name }) => workflows.list_versions(&name, version_list),
        WorkflowAction::Rollback(args) => workflows.roll_back(&args, |now: &Workflow| {
            format!("{} is at version {} now", now.active.name, now.active.version)
        }),
        WorkflowAction::Alias(args) => alias::run(&args, &workflows),
        WorkflowAction::Rm(args) => workflows.remove(&args),
    }
}

/// Checks a workflow without a node, and prints its number of steps.
fn report_plan(file: &Path, output: OutputSettings) -> Result<()> {
    let Checked { document, plan } = check(file)?;
    let steps = plan.steps().len();
    let hedged = plan.steps().iter().filter(|step| step.is_hedged).count();
    let undeclared = undeclared(&document, &plan);
    let checked = json!({ "file": file, "steps": steps, "hedged": hedged, "undeclared": undeclared });
    for output_name in &undeclared {
        output.note(format_args!(
            "warning: {output_name} is read, and its step does not declare it: only a model may have outputs that its step leaves out"
        ));
    }
    output.result(&checked, |_| {
        let steps = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        let hedged = if hedged == 0 { String::new() } else { format!(", {hedged} with hedge") };
        format!(
            "{} is sound: {steps}{hedged}; `weir workflows deploy --dry-run` also checks the models and functions that the steps run",
            file.display()
        )
    })
}

/// Outputs that are read from steps which declare others, as STEP.OUTPUT.
fn undeclared(document: &Document, plan: &Plan) -> Vec<String> {
    let declaring = plan.steps().iter().filter_map(|planned| {
        let step = document.steps.get(&planned.name)?;
        (step.run.is_some() && !step.outputs.is_empty()).then_some((planned, step))
    });
    declaring
        .flat_map(|(planned, step)| {
            // A source without the name of an output has an empty one.
            let read = planned.outputs_read(plan).filter(|output| !output.is_empty());
            let unknown = read.filter(|output| step.outputs.get(output).is_none());
            unknown.map(|output| format!("{}.{output}", planned.name)).collect::<Vec<_>>()
        })
        .collect()
}

/// A workflow that was checked without a node.
struct Checked {
    document: Document,
    plan: Plan,
}

/// Checks a workflow without a node.
fn check(file: &Path) -> Result<Checked> {
    let bytes = std::fs::read(file)
        .map_err(|error| Problem::new(format!("cannot read {}", file.display())).because(error))?;
    let unsound = |error: &dyn std::fmt::Display| {
        Problem::new(format!("{} is not a workflow: {error}", file.display()))
            .hint("docs/reference/workflows.md has the format")
    };
    let document = Document::parse(&bytes).map_err(|error| unsound(&error))?;
    let plan = Plan::new(&document, &|_, _| Ok(None)).map_err(|error| unsound(&error))?;
    Ok(Checked { document, plan })
}

fn list(workflows: &[Workflow]) -> String {
    if workflows.is_empty() {
        return "no workflows are deployed; `weir workflows deploy NAME FILE` deploys one".into();
    }
    let rows = workflows.iter().map(|Workflow { active, .. }| {
        [
            active.name.to_string(),
            active.version.to_string(),
            active.steps.len().to_string(),
            if active.ready { "yes" } else { "no" }.to_owned(),
            age(active.deployed_at_ms),
        ]
    });
    table(["NAME", "VERSION", "STEPS", "READY", "DEPLOYED"], rows)
}

fn version_list(versions: &[WorkflowVersion]) -> String {
    let rows = versions.iter().map(|version| {
        [
            format!("{}{}", version.version, if version.active { " (active)" } else { "" }),
            version.steps.len().to_string(),
            if version.ready { "yes" } else { "no" }.to_owned(),
            age(version.deployed_at_ms),
        ]
    });
    table(["VERSION", "STEPS", "READY", "DEPLOYED"], rows)
}

fn details(workflow: &WorkflowVersion, all: Option<&Workflow>) -> String {
    let mut facts = vec![
        ("name", workflow.name.to_string()),
        ("tenant", workflow.tenant.to_string()),
        ("version", format!("{}{}", workflow.version, if workflow.active { " (active)" } else { "" })),
        ("deployed", format!("{} ({})", time(workflow.deployed_at_ms), age(workflow.deployed_at_ms))),
        ("ready", workflow.reason.as_ref().map_or("yes".to_owned(), |reason| format!("no: {reason}"))),
    ];
    if !workflow.description.is_empty() {
        facts.insert(1, ("description", workflow.description.clone()));
    }
    facts.extend(workflow.slo_ms.map(|ms| ("slo", format!("{ms} ms"))));
    facts.extend(workflow.cost_slo.map(|cost| ("cost slo", cost.to_string())));
    if let Some(Workflow { versions, aliases, .. }) = all {
        let versions: Vec<_> = versions.iter().map(ToString::to_string).collect();
        facts.push(("versions", versions.join(", ")));
        facts.extend(alias::on_one_line(aliases).map(|aliases| ("aliases", aliases)));
    }
    let facts: String = facts.iter().map(|(name, value)| format!("{name:<13}{value}\n")).collect();
    let rows = workflow.steps.iter().map(|WorkflowStep { name, action, reads, when, .. }| {
        [name.clone(), action.clone(), reads.join(", "), when.clone().unwrap_or_else(|| "-".into())]
    });
    let steps = table(["STEP", "DOES", "READS", "WHEN"], rows);
    let hedges: String = workflow.steps.iter().filter_map(hedge).collect();
    format!("{facts}{}\n{steps}{hedges}", signature(&workflow.signature))
}

/// Describes the hedged copies of a step.
fn hedge(step: &WorkflowStep) -> Option<String> {
    let StepHedge { after_ns, runs, started, won } = step.hedge.as_ref()?;
    let due = match after_ns {
        Some(after_ns) => format!("a second copy after {:.1} ms", *after_ns as f64 / 1e6),
        None => "no second copy until 20 runs were measured".to_owned(),
    };
    Some(format!("\n{}: {due}; {runs} runs, {started} second copies, {won} of them first", step.name))
}
