//! `weir logs`.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::error::{Exit, Problem};
use crate::output::{OutputSettings, time};
use crate::settings::ClientArgs;
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use std::io::{BufRead as _, BufReader};
use weir_types::Name;
use weir_types::api::LogLine;

/// Indentation of the continuation lines of a multi-line log entry.
const INDENT: usize = 4;

/// Show a function's log
///
/// Shows the function's standard output and error, and the node's messages about its invocations.
/// With --json, each line is one JSON object. The node keeps the newest lines in memory
/// (logs.function_lines_max, logs.function_bytes_max); a restart of the node clears them.
///
/// Examples:
///   weir logs hello
///   weir logs hello -f            # follow the log; Ctrl-C ends it
///   weir logs hello --errors      # only standard error and the node's messages
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LogsArgs {
    /// Name of the function
    name: Name,
    /// Follow the log
    #[arg(long, short)]
    follow: bool,
    /// Number of recent lines to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    lines: usize,
    /// Omit standard output
    #[arg(long)]
    errors: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &LogsArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let has_shown = print(&client, &Query::from_args(args), context.output, || false)?;
    if !has_shown && !args.follow {
        context.output.note("no log lines: the function has written none since the node started");
    }
    if args.follow { Err(gone().into()) } else { Ok(()) }
}

/// Prints the log of `name` from now on, until the node ends the stream or, at the next line,
/// `is_over`.
pub(super) fn follow(
    client: &Client,
    name: &Name,
    output: OutputSettings,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    let query = Query { name, lines: 0, is_followed: true, is_errors_only: false };
    print(client, &query, output, is_over).map(drop)
}

/// Part of a log.
struct Query<'a> {
    name: &'a Name,
    lines: usize,
    is_followed: bool,
    is_errors_only: bool,
}

impl<'a> Query<'a> {
    fn from_args(args: &'a LogsArgs) -> Self {
        Self { name: &args.name, lines: args.lines, is_followed: args.follow, is_errors_only: args.errors }
    }
}

/// Prints log lines. Returns whether there were any.
fn print(
    client: &Client,
    query: &Query<'_>,
    output: OutputSettings,
    is_over: impl Fn() -> bool,
) -> Result<bool> {
    let Query { name, lines, is_followed, is_errors_only } = query;
    let path = format!("/v1/functions/{name}/logs?lines={lines}&follow={is_followed}");
    let stream = client.stream(&path, &format!("read the log of {name}"))?;
    let mut has_shown = false;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| gone().because(error))?;
        if is_over() {
            break;
        }
        // Empty lines are keep-alives.
        if line.is_empty() {
            continue;
        }
        let parsed: LogLine = serde_json::from_str(&line).map_err(|error| {
            Problem::new("the node sent a log line that cannot be read").because(error).exit(Exit::Refused)
        })?;
        if !(*is_errors_only && parsed.stream == "stdout") {
            show(&parsed, &line, output)?;
            has_shown = true;
        }
    }
    Ok(has_shown)
}

fn gone() -> Problem {
    Problem::new("the node closed the connection")
        .exit(Exit::Unreachable)
        .hint("it may be shutting down; `weir status` shows whether it answers")
}

fn show(line: &LogLine, raw: &str, output: OutputSettings) -> Result<()> {
    if output.json {
        return output.line(&raw);
    }
    let dim = Style::new().dimmed();
    let colour = match line.stream.as_str() {
        "stdout" => Style::new(),
        "stderr" => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
        _ => Style::new().fg_color(Some(AnsiColor::Cyan.into())),
    };
    let head = format!("{} v{} {} {:<6}", time(line.at_ms), line.version, line.request_id, line.stream);
    let indent = " ".repeat(INDENT);
    for (at, text) in line.text.split('\n').enumerate() {
        let text = printable(text);
        let head = if at == 0 { &*head } else { &*indent };
        output.line(&format!("{dim}{head}{dim:#} {colour}{text}{colour:#}"))?;
    }
    Ok(())
}

/// Replaces control characters in guest output, so that it cannot move the cursor or change
/// colours.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_output_cannot_control_the_terminal() {
        assert_eq!(printable("a\tb\u{1b}[2Jc\rd"), "a\tb\u{fffd}[2Jc\u{fffd}d");
    }
}
