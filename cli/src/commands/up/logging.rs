//! Node log on standard error.

use crate::error::Problem;
use anyhow::Result;
use clap::ValueEnum;
use std::io::IsTerminal as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

/// Default log filter.
pub(super) const FILTER_DEFAULT: &str = "info,cranelift=warn,wasmtime=warn,ort=warn";

/// Node log options.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Log filter, such as `debug` or `info,weir_host=trace` [default: info]
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG")]
    log: Option<String>,
    /// Log format [default: text on a terminal, else json]
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT")]
    log_format: Option<Format>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Starts logging to standard error, with `filter_default` unless the user chose a filter.
pub(crate) fn start(args: &LogArgs, filter_default: &str) -> Result<()> {
    let filter = args.log.as_deref().unwrap_or(filter_default);
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Problem::usage(format!("{filter:?} is not a log filter"))
            .because(error)
            .hint("write it like `info` or `warn,weir_host=debug`")
    })?;
    let terminal = std::io::stderr().is_terminal();
    let format = args.log_format.unwrap_or(if terminal { Format::Text } else { Format::Json });
    let lines = match format {
        Format::Text => {
            let ansi = terminal && std::env::var_os("NO_COLOR").is_none();
            fmt::layer().with_writer(std::io::stderr).with_ansi(ansi).boxed()
        }
        Format::Json => fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}
