//! `weir top`.

mod samples;
mod screen;
mod view;

use crate::client::Client;
use crate::commands::CommandContext;
use crate::settings::ClientArgs;
use anyhow::Result;
use samples::Samples;
use screen::Screen;
use std::io::{IsTerminal as _, Read as _};
use std::time::{Duration, Instant};
use view::Frame;
use weir_types::api::{EventPage, Status};

/// Size limit of the node's metrics.
const METRICS_BYTES_MAX: u64 = 64 << 20;
/// Events that a frame shows.
const EVENTS: usize = 5;

/// Show a node's load live: calls, latencies, devices, nodes and events
///
/// Shows rates and latencies since the previous refresh, from the node's status, metrics and
/// events. `q` or Ctrl-C ends it. Without a terminal, or with --once, prints one frame and ends.
///
/// Examples:
///   weir top
///   weir top --interval-ms 500
///   weir top --once
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct TopArgs {
    /// Time between two refreshes, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
    /// Print one frame and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &TopArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    let interval = Duration::from_millis(args.interval_ms);
    let mut before = Reading::take(&client)?;
    if args.once || context.output.json || !std::io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let now = Reading::take(&client)?;
        let frame = Frame::new(client.url(), &before, &now);
        return context.output.result(&frame, |frame| frame.lines().join("\n"));
    }
    let mut screen = Screen::open()?;
    let mut frame = Frame::new(client.url(), &before, &before);
    loop {
        screen.show(&frame.lines())?;
        if !screen.wait(interval)? {
            return Ok(());
        }
        let now = Reading::take(&client)?;
        frame = Frame::new(client.url(), &before, &now);
        before = now;
    }
}

/// Status, metrics and events of a node, read at one time.
struct Reading {
    at: Instant,
    status: Status,
    samples: Samples,
    events: EventPage,
}

impl Reading {
    fn take(client: &Client) -> Result<Self> {
        let status = client.get("/v1/status", "read the node's status")?;
        let mut text = String::new();
        client
            .stream("/metrics", "read the node's metrics")?
            .take(METRICS_BYTES_MAX)
            .read_to_string(&mut text)?;
        let at = Instant::now();
        let events = client.get(&format!("/v1/events?limit={EVENTS}"), "read the node's events")?;
        Ok(Self { at, status, samples: Samples::parse(&text), events })
    }
}
