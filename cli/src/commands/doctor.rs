//! `weir doctor`.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
pub(crate) use gpu::{STAGE_COMMAND, stage_main};
mod machine;
mod parts;

use crate::commands::CommandContext;
use crate::error::Problem;
use crate::output::OutputSettings;
use crate::settings::{ClientArgs, NodeArgs};
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use serde::Serialize;

/// Check this machine for problems and explain how to fix them
///
/// Checks the node, ONNX Runtime, the data folder, the Rust toolchain for functions, the kernel and
/// the limits of this process. With --fix, installs the missing parts that can be installed: ONNX
/// Runtime from PyPI, with a pinned checksum, and the toolchain.
///
/// Uses the same flags and environment as `weir up`. Exits with 1 if a part is missing that a node
/// or its models require.
///
/// Examples:
///   weir doctor
///   weir doctor --fix
///   weir doctor --gpu --model resnet50.onnx            # check a GPU's results and speed
///   weir doctor --gpu --model resnet50.onnx gpu.json   # save the results; rerun to resume
///   weir doctor --gpu --case "conv 3x3, tf32"          # single cases; --list-cases lists them
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DoctorArgs {
    /// Install missing parts where possible
    #[arg(long)]
    fix: bool,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    client: ClientArgs,
    #[cfg(feature = "cuda")]
    #[command(flatten)]
    gpu: gpu::GpuArgs,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    /// Weir works without the part, slower or with fewer features.
    Warning,
    /// Without the part a node does not start, or runs no models.
    Missing,
}

/// One check with its result and advice.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    fn missing(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Missing, found: found.into(), advice: Some(advice.into()) }
    }
}

pub(crate) fn run(args: &DoctorArgs, context: &CommandContext) -> Result<()> {
    #[cfg(feature = "cuda")]
    if args.gpu.gpu {
        return gpu::run(&args.gpu, context.output);
    }
    let client = context.client(&args.client)?;
    let node = args.node.config(context.file.as_ref())?;
    let findings = vec![
        parts::configuration(context.file.as_ref()),
        parts::onnxruntime(node.models.onnxruntime.as_deref(), args.fix, context.output),
        parts::data_folder(&node.data),
        parts::devices(&node),
        parts::gpu(),
        parts::confinement(),
        parts::toolchain(args.fix, context.output),
        parts::node(&client),
        machine::kernel(),
        machine::address_space(),
        machine::open_files(&node),
    ];
    context.output.result(&findings, |findings| text(findings))?;
    match findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count() {
        0 => Ok(()),
        _ if args.fix => Err(Problem::new("some parts could not be installed; see above").into()),
        _ => Err(Problem::new("something is missing; see above")
            .hint("`weir doctor --fix` installs missing parts where it can")
            .into()),
    }
}

fn text(findings: &[Finding]) -> String {
    findings.iter().map(line).collect()
}

fn line(finding: &Finding) -> String {
    let (word, colour) = match finding.verdict {
        Verdict::Ok => ("ok", AnsiColor::Green),
        Verdict::Warning => ("warning", AnsiColor::Yellow),
        Verdict::Missing => ("missing", AnsiColor::Red),
    };
    let style = Style::new().bold().fg_color(Some(colour.into()));
    let indent = " ".repeat(27);
    let advice = finding.advice.as_ref().map_or_else(String::new, |advice| format!("{indent}-> {advice}\n"));
    let found = finding.found.replace('\n', &format!("\n{indent}"));
    format!("{style}{word:<9}{style:#}{:<18}{found}\n{advice}", finding.check)
}

/// Returns a callback that prints each installation step to standard error.
fn steps(output: OutputSettings) -> impl FnMut(&str) {
    move |step| output.note(format_args!("  {step}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_listed_with_advice_below() {
        let findings = [Finding::ok("kernel", "Linux 6.18"), Finding::warning("node", "away", "start one")];
        assert_eq!(
            anstream::adapter::strip_str(&text(&findings)).to_string(),
            "ok       kernel            Linux 6.18\nwarning  node              away\n                           -> start one\n"
        );
    }
}
