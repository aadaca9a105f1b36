//! `weir triggers create`.

mod source;

use crate::commands::invoke::{BodySource, header, method};
use crate::error::Problem;
use anyhow::Result;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::{ArgGroup, ValueEnum};
use source::{SourceArgs, duration_ms};
use std::collections::BTreeMap;
use ureq::http::{HeaderName, HeaderValue, Method};
use weir_types::api::{
    MISSED_AGE_MS_DEFAULT, MissedPolicy, OverlapPolicy, TriggerRequest, TriggerSpec, TriggerTarget,
};
use weir_types::{ModelRef, Name, VersionRef};

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("target").args(["function", "inference"]).required(true))]
pub(super) struct CreateArgs {
    /// Name of the trigger
    pub(super) name: Name,
    #[command(flatten)]
    source: SourceArgs,
    /// Function to call
    #[arg(long, value_name = "NAME")]
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
    #[arg(long, short, value_name = "DATA", conflicts_with_all = ["nats", "events"])]
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
        if let Some(VersionRef::Alias(alias)) = inference.and_then(|model| model.version.as_ref()) {
            let text = format!("a trigger cannot name the alias {alias}");
            return Err(Problem::new(text).hint("name a version by its number, or no version").into());
        }
        Ok(TriggerSpec {
            source: self.source.source(),
            target: TriggerTarget {
                function: self.function.clone(),
                inference: inference.map(|model| model.name.clone()),
                version: inference.and_then(|model| model.version.as_ref()?.number()),
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
