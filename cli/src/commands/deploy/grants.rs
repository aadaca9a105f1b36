//! Arguments for grants and limits.

use crate::error::Problem;
use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_types::{CACHE_TTL_MS_MAX, Cost, FunctionManifest, ModelRef, NamePattern, SecretName};

/// Grants and limits in addition to those in weir.toml.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Grants and limits")]
pub(crate) struct GrantArgs {
    /// Models that the function may open, as NAME or NAME:VERSION
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',')]
    models: Vec<ModelRef>,
    /// Named objects that the function may read, as NAME, or PREFIX* for all names with that prefix
    #[arg(long = "objects-read", value_name = "NAME,...", value_delimiter = ',')]
    objects_read: Vec<NamePattern>,
    /// Named objects that the function may write and delete, as NAME or PREFIX*
    #[arg(long = "objects-write", value_name = "NAME,...", value_delimiter = ',')]
    objects_write: Vec<NamePattern>,
    /// Environment variable for the function, in plain text; may be repeated. For passwords and
    /// tokens, see --secrets
    #[arg(long = "env", short, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Secrets that the function gets as environment variables, as NAME, or VARIABLE=NAME
    #[arg(long, value_name = "SECRET,...", value_delimiter = ',', value_parser = secret)]
    secrets: Vec<(Option<String>, SecretName)>,
    /// Hosts that the function may send HTTP requests to, as HOST or HOST:PORT; * allows all hosts
    #[arg(long = "outbound", value_name = "HOST,...", value_delimiter = ',')]
    outbound_hosts: Vec<String>,
    /// Mark calls as idempotent, so that Weir may retry calls that failed part-way
    #[arg(long)]
    idempotent: bool,
    /// Let any client call the function at /fn/TENANT:NAME, without a token
    #[arg(long)]
    public: bool,
    /// Cache responses for N milliseconds, and return them for equal calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CACHE_TTL_MS_MAX))]
    cache_ttl_ms: Option<u64>,
    /// Reuse an instance for more than one call
    #[arg(long)]
    reuse: bool,
    /// Bound of the reuse, such as calls_max=100 or idle_ms=5000; enables the reuse. `weir
    /// functions show NAME` lists the keys
    #[arg(long = "reuse-bound", value_name = "KEY=NUMBER", value_parser = pair)]
    reuse_bounds: Vec<(String, String)>,
    /// Latency objective of a call; calls that would miss it are rejected at admission
    #[arg(long = "slo-ms", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    slo_ms: Option<u64>,
    /// Maximum device cost of a call, in the unit of the node's prices (scheduler.slo.prices)
    #[arg(long, value_name = "COST")]
    cost_slo: Option<Cost>,
    /// Limit, such as memory_bytes=67108864 or deadline_ms=5000; `weir functions show NAME` lists
    /// the keys
    #[arg(long = "limit", short, value_name = "KEY=NUMBER", value_parser = pair)]
    limits: Vec<(String, String)>,
}

impl GrantArgs {
    /// Adds the flags to `manifest`. Flags override the manifest's values.
    pub(crate) fn add_to(&self, mut manifest: FunctionManifest) -> Result<FunctionManifest> {
        for model in &self.models {
            if !manifest.models.contains(model) {
                manifest.models.push(model.clone());
            }
        }
        manifest.objects.read.extend(self.objects_read.iter().cloned());
        manifest.objects.write.extend(self.objects_write.iter().cloned());
        manifest.env.extend(self.env.iter().cloned());
        for (variable, name) in &self.secrets {
            manifest
                .secrets
                .grant(variable.as_deref(), name.clone())
                .map_err(|error| Problem::usage(format!("--secrets: {error}")))?;
        }
        manifest.outbound_hosts.extend(self.outbound_hosts.iter().cloned());
        manifest.idempotent |= self.idempotent;
        manifest.public |= self.public;
        manifest.cache_ttl_ms = self.cache_ttl_ms.or(manifest.cache_ttl_ms);
        manifest.slo_ms = self.slo_ms.or(manifest.slo_ms);
        manifest.cost_slo = self.cost_slo.or(manifest.cost_slo);
        manifest.limits = with("--limit", &manifest.limits, &self.limits)?;
        if self.reuse || !self.reuse_bounds.is_empty() {
            let reuse = manifest.reuse.unwrap_or_default();
            manifest.reuse = Some(with("--reuse-bound", &reuse, &self.reuse_bounds)?);
        }
        Ok(manifest)
    }
}

/// Applies `changes` from the option `flag` to `bounds`, a struct of numbers.
fn with<T: Serialize + DeserializeOwned>(flag: &str, bounds: &T, changes: &[(String, String)]) -> Result<T> {
    let mut all = serde_json::to_value(bounds)?;
    for (key, text) in changes {
        let wrong = |why: String| Problem::usage(format!("{flag} {key}={text}: {why}"));
        let number: u64 =
            text.replace('_', "").parse().map_err(|_| wrong(format!("{text:?} is not a whole number")))?;
        let Some(bound) = all.get_mut(key) else {
            let known: Vec<&str> =
                all.as_object().map(|all| all.keys().map(String::as_str).collect()).unwrap_or_default();
            return Err(wrong("there is no such key".into())
                .hint(format!("{flag} takes {}", known.join(", ")))
                .into());
        };
        *bound = Value::from(number);
        // The fields have different integer widths; this checks the range.
        serde_json::from_value::<T>(all.clone()).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(serde_json::from_value(all)?)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    if key.is_empty() { Err("the key is missing".into()) } else { Ok((key.to_owned(), value.to_owned())) }
}

/// A secret, with the variable that the function gets it in if that has another name.
fn secret(text: &str) -> Result<(Option<String>, SecretName), String> {
    let (variable, name) =
        text.split_once('=').map_or((None, text), |(variable, name)| (Some(variable), name));
    let name =
        SecretName::new(name).map_err(|error| format!("{error}; write it as NAME or VARIABLE=NAME"))?;
    Ok((variable.map(str::to_owned), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Limits, Reuse};

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn flags_extend_and_override_the_manifest() {
        let mut manifest =
            FunctionManifest { models: vec!["a".parse().unwrap()], ..FunctionManifest::default() };
        manifest.env.insert("MODE".into(), "slow".into());
        let flags = GrantArgs {
            models: vec!["a".parse().unwrap(), "b:2".parse().unwrap()],
            objects_read: vec!["session-*".parse().unwrap()],
            env: pairs(&[("MODE", "fast=1")]),
            secrets: ["API_KEY", "TOKEN=ci-token"].map(|text| secret(text).unwrap()).to_vec(),
            cache_ttl_ms: Some(7),
            slo_ms: Some(250),
            limits: pairs(&[("deadline_ms", "5_000")]),
            ..GrantArgs::default()
        };
        let manifest = flags.add_to(manifest).unwrap();
        assert_eq!(manifest.models, ["a".parse().unwrap(), "b:2".parse().unwrap()]);
        assert_eq!(manifest.env["MODE"], "fast=1");
        let secrets: Vec<_> = manifest.secrets.iter().map(|(to, name)| (to, name.as_str())).collect();
        assert_eq!(secrets, [("API_KEY", "API_KEY"), ("TOKEN", "ci-token")]);
        assert_eq!(manifest.objects.read, ["session-*".parse().unwrap()]);
        assert_eq!(manifest.cache_ttl_ms, Some(7));
        assert_eq!(GrantArgs::default().add_to(manifest.clone()).unwrap(), manifest);
        assert_eq!((manifest.slo_ms, manifest.cost_slo), (Some(250), None));
        assert_eq!(manifest.limits, Limits { deadline_ms: 5_000, ..Limits::default() });
    }

    #[test]
    fn reuse_is_enabled_by_flag_or_bound() {
        let add = |flags: GrantArgs, manifest: FunctionManifest| flags.add_to(manifest).unwrap().reuse;
        let fresh = FunctionManifest::default();
        assert_eq!(add(GrantArgs::default(), fresh.clone()), None);
        let plain = GrantArgs { reuse: true, ..GrantArgs::default() };
        assert_eq!(add(plain, fresh), Some(Reuse::default()));
        let kept = FunctionManifest {
            reuse: Some(Reuse { idle_ms: 5, ..Reuse::default() }),
            ..FunctionManifest::default()
        };
        let bound = GrantArgs { reuse_bounds: pairs(&[("calls_max", "7")]), ..GrantArgs::default() };
        assert_eq!(add(bound, kept), Some(Reuse { calls_max: 7, idle_ms: 5, ..Reuse::default() }));
    }

    #[test]
    fn secret_without_a_possible_variable_is_refused() {
        assert!(secret("a/b").unwrap_err().contains("VARIABLE=NAME"));
        let flags = GrantArgs { secrets: vec![secret("api-key").unwrap()], ..GrantArgs::default() };
        let error = flags.add_to(FunctionManifest::default()).unwrap_err().to_string();
        assert!(error.contains("API_KEY = \"api-key\""), "{error}");
    }

    #[test]
    fn invalid_limit_error_names_the_limit() {
        for (key, value, what) in [
            ("memory", "1", "no such key"),
            ("memory_bytes", "64MB", "not a whole number"),
            ("handles", "5000000000", "handles=5000000000"),
        ] {
            let changes = pairs(&[(key, value)]);
            let error = with("--limit", &Limits::default(), &changes).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
