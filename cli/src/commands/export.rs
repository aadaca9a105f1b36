//! `weir export`.

use crate::commands::CommandContext;
use crate::declaration::Export;
use crate::error::Problem;
use crate::files::write_whole;
use crate::settings::ClientArgs;
use anyhow::Result;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

/// Name of the written declaration.
const FILE: &str = "weir.yaml";

/// Write the node's functions, models, workflows and triggers as a declaration
///
/// Writes weir.yaml, which `weir diff` and `weir apply` read, and the documents of the workflows.
/// Components and models are named by their hashes: replace `digest` by `component` or `file` to
/// deploy them elsewhere. Values of environment variables are references such as ${NAME}, because a
/// node does not show them.
///
/// Examples:
///   weir export --to deploy
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ExportArgs {
    /// Folder to write; created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &ExportArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let file = args.to.join(FILE);
    let exists = |path: &std::path::Path| {
        Problem::new(format!("{} exists already", path.display())).hint("give another folder with --to")
    };
    if file.exists() {
        return Err(exists(&file).into());
    }
    let Export { text, documents, variables, canaries } = Export::read(&client)?;
    if let Some((document, _)) = documents.iter().find(|(document, _)| args.to.join(document).exists()) {
        return Err(exists(&args.to.join(document)).into());
    }
    fs::create_dir_all(&args.to)
        .map_err(|error| Problem::new(format!("cannot create {}", args.to.display())).because(error))?;
    for (document, text) in &documents {
        write_whole(&args.to.join(document), text.as_bytes())?;
    }
    // Last, so that a declaration has all its documents.
    write_whole(&file, text.as_bytes())?;
    if !variables.is_empty() {
        context.output.note(format!("set these variables before an apply: {}", variables.join(", ")));
    }
    if !canaries.is_empty() {
        let text = format!("without the canaries of {}", canaries.join(", "));
        context.output.note(text);
    }
    let written = json!({ "file": file, "variables": variables, "canaries": canaries });
    context.output.result(&written, |_| format!("wrote {}", file.display()))
}
