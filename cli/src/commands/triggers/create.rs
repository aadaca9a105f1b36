//! `weir triggers create`.

use crate::commands::invoke::{BodySource, header, method};
use crate::error::Problem;
use anyhow::Result;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::ValueEnum;
use jiff::SignedDuration;
use std::collections::BTreeMap;
use ureq::http::{HeaderName, HeaderValue, Method};
use weir_types::api::{
    MISSED_AGE_MS_DEFAULT, MissedPolicy, OverlapPolicy, TriggerRequest, TriggerSource, TriggerSpec,
    TriggerTarget,
};
use weir_types::{ModelRef, Name};

#[derive(Debug, clap::Args)]
pub(super) struct CreateArgs {
    /// Name of the trigger
    pub(super) name: Name,
    /// Schedule as a cron expression with 5 fields (minute, hour, day, month, weekday), or with 6
    /// fields of which the first has seconds
    #[arg(long, value_name = "EXPRESSION", required_unless_present = "every", conflicts_with = "every")]
    cron: Option<String>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    timezone: Option<String>,
    /// Schedule as an interval, such as 30s or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    every: Option<u64>,
    /// Function to call
    #[arg(long, value_name = "NAME", required_unless_present = "inference", conflicts_with = "inference")]
    function: Option<Name>,
    /// Model, workflow or tensor function to run, with an optional version: NAME[:VERSION]
    #[arg(long, value_name = "NAME")]
    inference: Option<ModelRef>,
    /// HTTP method of the request [default: POST]
    #[arg(long, short = 'X', value_name = "METHOD", value_parser = method, conflicts_with = "inference")]
    method: Option<Method>,
    /// Path below the function's URL, with the query [default: /]
    #[arg(long, value_name = "PATH", conflicts_with = "inference")]
    path: Option<String>,
    /// Header of the request, as 'name: value'; may be repeated
    #[arg(long = "header", short = 'H', value_name = "HEADER", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Body of the request: literal text, @FILE, or @- for standard input
    #[arg(long, short, value_name = "DATA")]
    body: Option<String>,
    /// Treatment of ticks that passed while no node could send their request
    #[arg(long, value_name = "POLICY", default_value = "skip")]
    missed: MissedArg,
    /// Age of a missed tick up to which `--missed run-once` sends its request [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    missed_age_max: Option<u64>,
    /// Treatment of a tick while the invocation of the tick before has not ended
    #[arg(long, value_name = "POLICY", default_value = "allow")]
    overlap: OverlapArg,
    /// Create the trigger paused
    #[arg(long)]
    paused: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MissedArg {
    /// Skip missed ticks
    Skip,
    /// Send one request for the latest missed tick
    RunOnce,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OverlapArg {
    /// Send the request
    Allow,
    /// Skip the tick
    Skip,
}

impl CreateArgs {
    /// The settings of the trigger. Reads the body.
    pub(super) fn spec(&self) -> Result<TriggerSpec> {
        let inference = self.inference.as_ref();
        Ok(TriggerSpec {
            source: TriggerSource {
                cron: self.cron.clone(),
                timezone: self.timezone.clone(),
                every_ms: self.every,
            },
            target: TriggerTarget {
                function: self.function.clone(),
                inference: inference.map(|model| model.name.clone()),
                version: inference.and_then(|model| model.version),
            },
            request: self.request()?,
            enabled: !self.paused,
            missed: match self.missed {
                MissedArg::Skip => MissedPolicy::Skip,
                MissedArg::RunOnce => MissedPolicy::RunOnce,
            },
            missed_age_ms_max: self.missed_age_max.unwrap_or(MISSED_AGE_MS_DEFAULT),
            overlap: match self.overlap {
                OverlapArg::Allow => OverlapPolicy::Allow,
                OverlapArg::Skip => OverlapPolicy::Skip,
            },
        })
    }

    fn request(&self) -> Result<TriggerRequest> {
        let mut request = TriggerRequest::default();
        if let Some(method) = &self.method {
            request.method = method.to_string();
        }
        if let Some(path) = &self.path {
            request.path = format!("/{}", path.trim_start_matches('/'));
        }
        let mut headers = BTreeMap::new();
        if let Some(data) = &self.body {
            let source = BodySource::read(data)?;
            headers.insert("content-type".to_owned(), source.content_type().to_owned());
            match String::from_utf8(source.into_bytes()?) {
                Ok(text) => request.body = Some(text),
                Err(error) => request.body_base64 = Some(BASE64_STANDARD.encode(error.as_bytes())),
            }
        }
        for (name, value) in &self.headers {
            let text =
                value.to_str().map_err(|_| Problem::usage(format!("{name} has characters outside ASCII")))?;
            headers.insert(name.to_string(), text.to_owned());
        }
        request.headers = headers;
        Ok(request)
    }
}

/// Parses a duration such as `30s` to milliseconds.
fn duration_ms(text: &str) -> Result<u64, String> {
    let duration: SignedDuration =
        text.parse().map_err(|_| "takes a duration such as 30s, 5m or 2h".to_owned())?;
    let duration_ms = u64::try_from(duration.as_millis()).ok().filter(|duration_ms| *duration_ms > 0);
    duration_ms.ok_or_else(|| "takes a positive duration".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_positive_milliseconds() {
        assert_eq!(duration_ms("1m30s"), Ok(90_000));
        assert!(duration_ms("-5s").is_err() && duration_ms("0s").is_err() && duration_ms("soon").is_err());
    }
}
