//! `weir events`.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::commands::models::query;
use crate::error::{Exit, Problem};
use crate::output::{OutputSettings, table, time};
use crate::settings::ClientArgs;
use crate::since::parse_since;
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use std::io::{BufRead as _, BufReader};
use weir_types::api::{Event, EventKind, EventPage};

/// Show events: deploys, faults, evictions, lost devices, and changes of the cluster
///
/// Shows the newest events of all nodes of the cluster. Each node keeps 500 events of each tenant
/// and 500 about itself in memory, and counts repetitions within a minute. With --json, each line
/// is one JSON object.
///
/// Examples:
///   weir events
///   weir events -f                            # follow; Ctrl-C ends it
///   weir events --kind fault,quarantined --since 1h
///   weir events --name digits                 # of all versions of digits
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct EventsArgs {
    /// Follow new events
    #[arg(long, short)]
    follow: bool,
    /// Show events of these kinds, such as deployed, fault or node-left
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<EventKind>,
    /// Show events about a function, model, workflow, device or node
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Show events since a time: a duration before now, such as 10m, or a time in RFC 3339
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<u64>,
    /// Number of recent events to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    client: ClientArgs,
}

const HEADER: [&str; 6] = ["TIME", "KIND", "COUNT", "NODE", "NAME", "TEXT"];

pub(crate) fn run(args: &EventsArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let output = context.output;
    if args.follow {
        return follow(&client, &path(args), output);
    }
    let page: EventPage = client.get(&path(args), "list the events")?;
    for node in &page.unreachable {
        output.note(format_args!("node {} does not answer: its events are missing", node.0));
    }
    if output.json {
        return page.events.iter().try_for_each(|event| output.line(&serde_json::to_string(event)?));
    }
    if page.events.is_empty() {
        output.note("no events match");
        return Ok(());
    }
    output.line(&table(HEADER, page.events.iter().map(row)))
}

fn path(args: &EventsArgs) -> String {
    let kinds: Vec<&str> = args.kind.iter().map(|kind| kind.as_str()).collect();
    let query = query(&[
        ("kind", (!kinds.is_empty()).then(|| kinds.join(","))),
        ("name", args.name.clone()),
        ("since_ms", args.since.map(|since| since.to_string())),
        // Followers get earlier events only on request.
        ("limit", (!args.follow || args.since.is_some()).then(|| args.limit.to_string())),
        ("follow", args.follow.then(|| "true".to_owned())),
    ]);
    format!("/v1/events{query}")
}

/// Prints events until the node ends the stream.
fn follow(client: &Client, path: &str, output: OutputSettings) -> Result<()> {
    let stream = client.stream(path, "follow the events")?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| gone().because(error))?;
        // Other lines are the kind and number of the event, comments that keep the connection open,
        // and the ends of events.
        let Some(json) = line.strip_prefix("data:") else { continue };
        let json = json.trim_start();
        if output.json {
            output.line(&json)?;
            continue;
        }
        let event: Event = serde_json::from_str(json).map_err(|error| {
            Problem::new("the node sent an event that cannot be read").because(error).exit(Exit::Refused)
        })?;
        let dim = Style::new().dimmed();
        let colour = colour(event.kind);
        let node = node(&event);
        output.line(&format!(
            "{dim}{}{dim:#} {colour}{:<18}{colour:#} {dim}{node:>4}{dim:#}  {}",
            time(event.at_ms),
            event.kind,
            event.text
        ))?;
    }
    Err(gone().into())
}

fn gone() -> Problem {
    Problem::new("the node closed the connection")
        .exit(Exit::Unreachable)
        .hint("it may be shutting down; `weir status` shows whether it answers")
}

fn row(event: &Event) -> [String; 6] {
    [
        time(event.at_ms),
        event.kind.to_string(),
        event.count.to_string(),
        node(event),
        event.name.clone(),
        event.text.clone(),
    ]
}

fn node(event: &Event) -> String {
    event.node.map_or_else(|| "-".to_owned(), |node| node.0.to_string())
}

fn colour(kind: EventKind) -> Style {
    let colour = match kind {
        EventKind::Fault | EventKind::Quarantined | EventKind::DeviceLost | EventKind::NodeLeft => {
            AnsiColor::Red
        }
        EventKind::Evicted
        | EventKind::Removed
        | EventKind::RolledBack
        | EventKind::CanaryStarted
        | EventKind::CanaryRolledBack => AnsiColor::Yellow,
        EventKind::Deployed
        | EventKind::AliasChanged
        | EventKind::CanaryPromoted
        | EventKind::Released
        | EventKind::DeviceRecovered
        | EventKind::NodeJoined
        | EventKind::Elected => AnsiColor::Green,
    };
    Style::new().fg_color(Some(colour.into()))
}
