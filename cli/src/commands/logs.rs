//! `weir logs`.

mod trace;

use crate::client::Client;
use crate::commands::CommandContext;
use crate::error::{Exit, Problem};
use crate::output::{OutputSettings, time};
use crate::settings::ClientArgs;
use crate::since::parse_since;
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::ValueEnum;
use std::collections::VecDeque;
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
///   weir logs hello -f                # follow the log; Ctrl-C ends it
///   weir logs hello --errors          # only standard error and the node's messages
///   weir logs hello --since 10m --level error
///   weir logs hello --request ID      # the lines of one call
///   weir logs hello --verbose         # all frames of stack traces
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LogsArgs {
    /// Name of the function
    name: Name,
    /// Follow the log
    #[arg(long, short)]
    follow: bool,
    /// Number of recent lines to show, of those that the other options select [default: 100; all if other
    /// options select lines]
    #[arg(long, short = 'n', value_name = "N")]
    lines: Option<usize>,
    /// Omit standard output; the same as `--level warn`
    #[arg(long, conflicts_with = "level")]
    errors: bool,
    /// Show lines of this level and above
    #[arg(long, value_enum, value_name = "LEVEL")]
    level: Option<LogLevel>,
    /// Show lines since a time: a duration before now, such as 10m, or a time in RFC 3339
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<u64>,
    /// Show lines of the request with this id
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Show all frames of stack traces, and not only those with source lines
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Levels of log lines, by their stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum LogLevel {
    /// Standard output
    #[default]
    Info,
    /// Standard error
    Warn,
    /// The node's messages about failed invocations and denied access
    Error,
}

impl LogLevel {
    fn from_stream(stream: &str) -> Self {
        match stream {
            "stdout" => Self::Info,
            "stderr" => Self::Warn,
            _ => Self::Error,
        }
    }
}

/// Number of recent lines that are shown by default.
const LINES: usize = 100;
/// Number of lines that requests all lines, because the node keeps fewer.
const LINES_ALL: usize = u32::MAX as usize;

pub(crate) fn run(args: &LogsArgs, context: &CommandContext) -> Result<()> {
    if args.lines == Some(0) && !args.follow {
        return Err(Problem::usage("-n is at least 1, except with --follow").into());
    }
    let client = context.client(&args.client)?;
    let query = Query::from_args(args);
    let has_shown = print(&client, &query, context.output, || false)?;
    if !has_shown && !args.follow {
        context.output.note(match query.filter.is_set() {
            false => "no log lines: the function has written none since the node started",
            true => "no log lines match; without --since, --level, --errors and --request, all are shown",
        });
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
    let query =
        Query { name, lines: Some(0), is_followed: true, filter: Filter::default(), is_verbose: false };
    print(client, &query, output, is_over).map(drop)
}

/// Part of a log.
struct Query<'a> {
    name: &'a Name,
    /// Selected lines to show of those that exist; `None`: all.
    lines: Option<usize>,
    is_followed: bool,
    filter: Filter,
    is_verbose: bool,
}

/// The lines to show.
#[derive(Default)]
struct Filter {
    level: LogLevel,
    since_ms: Option<u64>,
    request: Option<String>,
}

impl Filter {
    /// Whether it leaves lines out.
    fn is_set(&self) -> bool {
        self.level > LogLevel::Info || self.since_ms.is_some() || self.request.is_some()
    }

    fn selects(&self, line: &LogLine) -> bool {
        LogLevel::from_stream(&line.stream) >= self.level
            && self.since_ms.is_none_or(|since_ms| line.at_ms >= since_ms)
            && self.request.as_ref().is_none_or(|request| line.request_id == *request)
    }
}

impl<'a> Query<'a> {
    fn from_args(args: &'a LogsArgs) -> Self {
        let level = if args.errors { LogLevel::Warn } else { args.level.unwrap_or_default() };
        let filter = Filter { level, since_ms: args.since, request: args.request.clone() };
        // `--level info` leaves nothing out, and asks for all lines as other levels do.
        let is_filtered = filter.is_set() || args.level.is_some();
        Self {
            name: &args.name,
            lines: args.lines.or((!is_filtered).then_some(LINES)),
            is_followed: args.follow,
            filter,
            is_verbose: args.verbose,
        }
    }
}

/// Prints log lines. Returns whether there were any.
fn print(
    client: &Client,
    query: &Query<'_>,
    output: OutputSettings,
    is_over: impl Fn() -> bool,
) -> Result<bool> {
    let Query { name, lines, is_followed, filter, is_verbose } = query;
    // The node does not know the filter, so it sends the lines among which some are selected.
    let sent = lines.filter(|_| !filter.is_set()).unwrap_or(LINES_ALL);
    let path = format!("/v1/functions/{name}/logs?lines={sent}&follow={is_followed}");
    let stream = client.stream(&path, &format!("read the log of {name}"))?;
    let mut has_shown = false;
    // The newest selected lines, until it is known that no further ones exist.
    let mut newest = lines.filter(|_| filter.is_set()).map(Newest::new);
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| gone().because(error))?;
        if is_over() {
            break;
        }
        // An empty line ends the lines that existed; further ones are keep-alives.
        if line.is_empty() {
            for (line, raw) in newest.take().into_iter().flat_map(Newest::into_lines) {
                show(&line, &raw, output, *is_verbose)?;
                has_shown = true;
            }
            continue;
        }
        let parsed: LogLine = serde_json::from_str(&line).map_err(|error| {
            Problem::new("the node sent a log line that cannot be read").because(error).exit(Exit::Refused)
        })?;
        if !filter.selects(&parsed) {
            continue;
        }
        match &mut newest {
            Some(newest) => newest.push(parsed, line),
            None => {
                show(&parsed, &line, output, *is_verbose)?;
                has_shown = true;
            }
        }
    }
    for (line, raw) in newest.into_iter().flat_map(Newest::into_lines) {
        show(&line, &raw, output, *is_verbose)?;
        has_shown = true;
    }
    Ok(has_shown)
}

/// The last lines of a log, each parsed and as the node sent it.
struct Newest {
    lines: VecDeque<(LogLine, String)>,
    count_max: usize,
}

impl Newest {
    fn new(count_max: usize) -> Self {
        Self { lines: VecDeque::new(), count_max }
    }

    fn push(&mut self, line: LogLine, raw: String) {
        self.lines.push_back((line, raw));
        if self.lines.len() > self.count_max {
            self.lines.pop_front();
        }
    }

    fn into_lines(self) -> VecDeque<(LogLine, String)> {
        self.lines
    }
}

fn gone() -> Problem {
    Problem::new("the node closed the connection")
        .exit(Exit::Unreachable)
        .hint("it may be shutting down; `weir status` shows whether it answers")
}

fn show(line: &LogLine, raw: &str, output: OutputSettings, is_verbose: bool) -> Result<()> {
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
    let is_shortened = line.stream == "weir" && !is_verbose;
    let text = if is_shortened { trace::shorten(&line.text) } else { line.text.clone() };
    for (at, text) in text.split('\n').enumerate() {
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
    fn lines_are_selected_by_level_time_and_request() {
        let line = |stream: &str, at_ms, request: &str| LogLine {
            at_ms,
            version: weir_types::Version(1),
            request_id: request.into(),
            stream: stream.into(),
            text: String::new(),
        };
        let lines = [line("stdout", 1, "a"), line("stderr", 2, "b"), line("weir", 3, "a")];
        let selected = |filter: &Filter| lines.iter().map(|line| filter.selects(line)).collect::<Vec<_>>();
        assert_eq!(selected(&Filter::default()), [true, true, true]);
        assert_eq!(selected(&Filter { level: LogLevel::Warn, ..Filter::default() }), [false, true, true]);
        assert_eq!(selected(&Filter { level: LogLevel::Error, ..Filter::default() }), [false, false, true]);
        assert_eq!(selected(&Filter { since_ms: Some(2), ..Filter::default() }), [false, true, true]);
        let of_a = Filter { request: Some("a".into()), ..Filter::default() };
        assert_eq!(selected(&of_a), [true, false, true]);
        let mut newest = Newest::new(2);
        for line in lines {
            newest.push(line, String::new());
        }
        assert_eq!(newest.into_lines().iter().map(|(line, _)| line.at_ms).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn guest_output_cannot_control_the_terminal() {
        assert_eq!(printable("a\tb\u{1b}[2Jc\rd"), "a\tb\u{fffd}[2Jc\u{fffd}d");
    }
}
