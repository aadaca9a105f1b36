//! `weir doctor`.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
pub(crate) use gpu::{STAGE_COMMAND, stage_main};
mod machine;
mod parts;

use crate::commands::Context;
use crate::error::Problem;
use crate::output::Output;
use crate::settings::{ClientArgs, NodeArgs};
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use serde::Serialize;

/// Check what Weir needs on this machine, and say what to do about what is missing
///
/// Checked: the node, ONNX Runtime, the data folder, the toolchain for functions in Rust, the
/// kernel and the limits of this process. With --fix, what can be brought is brought: ONNX Runtime
/// from PyPI, by a pinned checksum, and the toolchain.
///
/// What is looked at is what `weir up` would use: it takes the same flags and the same environment.
/// Ends with 1 if something is missing that a node, or models on it, cannot do without.
///
/// Examples:
///   weir doctor
///   weir doctor --fix
///   weir doctor --gpu --model resnet50.onnx            # whether a GPU computes what it should, and how fast
///   weir doctor --gpu --model resnet50.onnx gpu.json   # the same, kept in a file: given again, it goes on there
///   weir doctor --gpu --case "conv 3x3, tf32"          # single cases; --list-cases lists them
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DoctorArgs {
    /// Bring what is missing, where that can be done
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

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    /// Weir works without it, less well or not for everything.
    Warning,
    /// A node does not start without it, or runs no models.
    Missing,
}

/// One thing that was looked at.
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

pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<()> {
    #[cfg(feature = "cuda")]
    if args.gpu.gpu {
        return gpu::run(&args.gpu, context.output);
    }
    let client = context.client(&args.client)?;
    let node = args.node.config(context.file.as_ref())?;
    let findings = vec![
        parts::configuration(context.file.as_ref()),
        parts::onnxruntime(node.onnxruntime.as_deref(), args.fix, context.output),
        parts::data_folder(&node.data),
        parts::gpu(),
        parts::toolchain(args.fix, context.output),
        parts::node(&client),
        machine::kernel(),
        machine::address_space(),
        machine::open_files(&node),
    ];
    context.output.result(&findings, |findings| text(findings))?;
    match findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count() {
        0 => Ok(()),
        _ if args.fix => Err(Problem::new("not everything could be brought; see above").into()),
        _ => Err(Problem::new("something is missing; see above")
            .hint("`weir doctor --fix` brings what it can")
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

/// Tells, on standard error, each step of bringing something.
fn steps(output: Output) -> impl FnMut(&str) {
    move |step| output.note(format_args!("  {step}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_read_as_a_list_with_advice_below() {
        let findings = [Finding::ok("kernel", "Linux 6.18"), Finding::warning("node", "away", "start one")];
        assert_eq!(
            anstream::adapter::strip_str(&text(&findings)).to_string(),
            "ok       kernel            Linux 6.18\nwarning  node              away\n                           -> start one\n"
        );
    }
}
