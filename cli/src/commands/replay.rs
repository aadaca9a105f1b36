//! `weir replay`: an open-loop load generator.

mod bodies;
mod fake;
mod load;
mod plan;
mod report;

use crate::client::Client;
use crate::commands::invoke::{header, method};
use crate::commands::workload::WorkloadArgs;
use crate::commands::{CommandContext, plot};
use crate::error::Problem;
use crate::settings::{ClientArgs, NodeEndpoint, normal_url};
use anyhow::Result;
use load::Load;
use plan::Plan;
use report::ReplayReport;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::{HeaderName, HeaderValue, Method};

/// Send the requests of a workload to a node or another server, and measure the latencies
///
/// Each request is sent at its time in the workload, whether or not earlier requests have been
/// answered (an open loop), and its latency counts from that time. Requests come from a file, a
/// preset, a trace of Azure Functions, or a recording of a node's scheduler. The models of a
/// workload are called m0, m1 and so on.
///
/// The path of a request may contain {model}, {function} (f0, f1 and so on for a workload) and
/// {index}, a number. Inferences without --body send zeros for the inputs that the model describes.
///
/// LAG is how late a request was sent: a high lag means that this machine is too slow for the
/// load. Requests beyond --in-flight-max are not sent, and are reported.
///
/// Examples:
///   weir replay --preset trace --minutes 2 --speed 10 --push-fake
///   weir replay --workload day.json --path '/fn/classify-{index}' --body 7.png --plot day.svg
///   weir replay --azure invocations_per_function.csv --functions 20 --report day.json
///   weir replay --record record.jsonl --url http://node-1:9347 --also-url http://node-2:9347
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Recording of a node's scheduler (scheduler.record), whose arrivals are the requests
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "preset", "azure"], help_heading = "Workload")]
    record: Option<PathBuf>,
    /// Time scale: at 10, a minute of the workload takes 6 s
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed, help_heading = "Workload")]
    speed: f64,
    #[command(flatten)]
    request: RequestArgs,
    /// Push a fake model with the workload's costs, divided by --speed, for each model first; for
    /// nodes with models.backend = "fake"
    #[arg(long, conflicts_with = "record")]
    push_fake: bool,
    /// Further server, called in turn with the first; may be repeated
    #[arg(long = "also-url", value_name = "URL", value_parser = normal_url_text)]
    also_urls: Vec<String>,
    /// Maximum number of requests that wait for their response at the same time
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    in_flight_max: u32,
    /// Time after which a request counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout_s: u32,
    /// Write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Draw the latencies over time into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Requests")]
struct RequestArgs {
    /// Path of the requests [default: /v2/models/{model}/infer; for a recorded call of a function,
    /// /fn/{function}]
    #[arg(long, value_name = "TEMPLATE", value_parser = template)]
    path: Option<String>,
    /// Method of the requests
    #[arg(long, value_name = "METHOD", default_value = "POST", value_parser = method)]
    method: Method,
    /// Header of the requests, as 'name: value'; may be repeated
    #[arg(long = "header", short = 'H', value_name = "HEADER", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// File with the body of the requests
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
}

pub(crate) fn run(args: &ReplayArgs, context: &CommandContext) -> Result<()> {
    if args.record.is_none() && !args.workload.is_named() {
        return Err(Problem::usage("no requests to send")
            .hint("name them with --preset, --workload, --azure or --record")
            .into());
    }
    let clients = clients(args, context)?;
    let (mut plan, workload) = match &args.record {
        Some(path) => (Plan::from_record(path, args.request.path.as_deref())?, None),
        None => {
            let workload = args.workload.read_one()?;
            (
                Plan::from_workload(&workload, args.workload.source(), args.request.path.as_deref()),
                Some(workload),
            )
        }
    };
    if let Some(workload) = workload.filter(|_| args.push_fake) {
        fake::push(&clients, &workload, args.speed, context.output)?;
    }
    match &args.request.body {
        Some(path) => plan.set_body(&read(path)?),
        None => bodies::add(&mut plan, &clients[0])?,
    }
    let load = Load {
        plan: &plan,
        clients: &clients,
        speed: args.speed,
        in_flight_max: args.in_flight_max as usize,
        method: &args.request.method,
        headers: &args.request.headers,
    };
    let bar = context.output.count_bar("Sending", plan.requests.len() as u64);
    let sent = load.run(&bar)?;
    bar.finish_and_clear();
    let urls = clients.iter().map(|client| client.url().to_owned()).collect();
    let report = ReplayReport::new(&plan, urls, args.speed, &sent);
    if let Some(path) = &args.report {
        write(path, &serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(path) = &args.plot {
        plot::write(path, &report.chart())?;
    }
    context.output.result(&report, ReplayReport::text)?;
    report.check()
}

fn clients(args: &ReplayArgs, context: &CommandContext) -> Result<Vec<Client>> {
    let first = args.client.endpoint(context.file.as_ref())?;
    let further = args.also_urls.iter().map(|url| NodeEndpoint { url: url.clone(), ..first.clone() });
    let timeout = Duration::from_secs(args.timeout_s.into());
    let endpoints = std::iter::once(first.clone()).chain(further);
    endpoints.map(|endpoint| Client::for_load(endpoint, args.in_flight_max as usize, timeout)).collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Problem::new(format!("cannot read {}", path.display())).because(error);
    Ok(std::fs::read(path).map_err(failed)?)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error| Problem::new(format!("cannot write {}", path.display())).because(error);
    Ok(std::fs::write(path, bytes).map_err(failed)?)
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.001..=1e6).contains(&speed) {
        Ok(speed)
    } else {
        Err("it is a factor from 0.001 to 1000000".into())
    }
}

fn template(text: &str) -> Result<String, String> {
    let known = plan::PLACEHOLDERS.iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
    if !text.starts_with('/') {
        return Err("it starts with /".into());
    }
    if known.contains(['{', '}']) {
        return Err(format!("it may contain {}", plan::PLACEHOLDERS.join(", ")));
    }
    Ok(text.to_owned())
}

fn normal_url_text(text: &str) -> Result<String, String> {
    normal_url(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_and_speeds_are_checked() {
        assert_eq!(template("/fn/f-{index}?m={model}").unwrap(), "/fn/f-{index}?m={model}");
        assert!(template("fn").unwrap_err().contains('/'));
        assert!(template("/fn/{name}").unwrap_err().contains("{model}"));
        assert_eq!(speed("0.5"), Ok(0.5));
        assert!(speed("0").is_err() && speed("fast").is_err() && speed("inf").is_err());
    }
}
