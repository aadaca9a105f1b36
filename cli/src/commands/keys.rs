//! `weir keys`.

use crate::commands::CommandContext;
use crate::commands::collection::{Collection, NameArgs};
use crate::output::{age, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use ureq::SendBody;
use ureq::http::Method;
use weir_types::Name;
use weir_types::api::{ApiKey, CreatedApiKey, NewApiKey, Scope};

const DAY_MS: u64 = 24 * 3_600_000;

/// Manage API keys: tokens with scopes and an expiry
///
/// A key acts for the tenant of the token that creates it, on a node with a token file. Creating and
/// revoking keys needs a token of the token file, or a key with the scope admin.
///
/// Examples:
///   weir keys create ci --scope deploy --scope read
///   weir keys create web --scope invoke --function hello --days 30
///   weir keys                                 # list all keys
///   weir keys revoke ci
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    action: Option<KeyAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum KeyAction {
    /// List all keys (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Create a key, and print its token, which cannot be shown again
    Create(CreateArgs),
    /// Show a key's scopes and expiry
    Show(NameArgs),
    /// Revoke a key: its token is refused from now on
    #[command(visible_alias = "rm")]
    Revoke(NameArgs),
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Name of the key
    name: Name,
    /// Permission of the key's holder; give the option once for each scope
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<ScopeArg>,
    /// Function that the key is limited to; give the option once for each function [default:
    /// everything of the tenant]
    #[arg(long = "function", value_name = "NAME")]
    functions: Vec<Name>,
    /// Days until the key expires, at most 366
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=366))]
    days: u64,
}

/// A scope as an argument.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScopeArg {
    /// Call functions, models and workflows; use objects and asynchronous invocations
    Invoke,
    /// Deploy, roll back and remove
    Deploy,
    /// Read deployments, logs, usage and metrics
    Read,
    /// Create and revoke keys, and everything else
    Admin,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Invoke => Self::Invoke,
            ScopeArg::Deploy => Self::Deploy,
            ScopeArg::Read => Self::Read,
            ScopeArg::Admin => Self::Admin,
        }
    }
}

pub(crate) fn run(args: KeysArgs, context: &CommandContext) -> Result<()> {
    let keys = Collection::open("keys", &args.client, context)?;
    match args.action.unwrap_or(KeyAction::List) {
        KeyAction::List => keys.list(list),
        KeyAction::Create(args) => create(&keys, args),
        KeyAction::Show(NameArgs { name }) => keys.output.result(&keys.get(&name)?, details),
        KeyAction::Revoke(NameArgs { name }) => {
            keys.client.delete(&keys.path(&name), &format!("revoke {name}"))?;
            keys.output.result(&json!({ "revoked": name }), |_| format!("revoked {name}"))
        }
    }
}

fn create(keys: &Collection, args: CreateArgs) -> Result<()> {
    let CreateArgs { name, scopes, functions, days } = args;
    let new = NewApiKey {
        scopes: scopes.into_iter().map(Scope::from).collect(),
        functions,
        ttl_ms: Some(days * DAY_MS),
    };
    let what = format!("create the key {name}");
    let body = SendBody::from_json(&new)?;
    let created: CreatedApiKey = keys.client.call(Method::PUT, &keys.path(&name), &what, body)?;
    keys.output.note("the node does not keep the token: store it now");
    keys.output
        .result(&created, |created| format!("{}{:<12} {}", details(&created.key), "token", created.token))
}

fn list(keys: &[ApiKey]) -> String {
    if keys.is_empty() {
        return "no API keys; `weir keys create NAME --scope SCOPE` makes one".into();
    }
    let row = |key: &ApiKey| {
        [key.name.to_string(), scopes(key), functions(key), age(key.created_at_ms), expiry(key)]
    };
    table(["NAME", "SCOPES", "FUNCTIONS", "CREATED", "EXPIRES"], keys.iter().map(row))
}

fn details(key: &ApiKey) -> String {
    let rows = [
        ("name", key.name.to_string()),
        ("scopes", scopes(key)),
        ("functions", functions(key)),
        ("created", time(key.created_at_ms)),
        ("expires", expiry(key)),
    ];
    rows.map(|(what, value)| format!("{what:<12} {value}\n")).concat()
}

fn scopes(key: &ApiKey) -> String {
    key.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",")
}

fn functions(key: &ApiKey) -> String {
    if key.functions.is_empty() {
        return "all".into();
    }
    key.functions.iter().map(Name::to_string).collect::<Vec<_>>().join(",")
}

fn expiry(key: &ApiKey) -> String {
    let is_over =
        u64::try_from(jiff::Timestamp::now().as_millisecond()).is_ok_and(|now| key.expires_at_ms <= now);
    format!("{}{}", time(key.expires_at_ms), if is_over { " (expired)" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_with_their_limits() {
        let key = ApiKey {
            name: Name::new("web").unwrap(),
            scopes: vec![Scope::Invoke, Scope::Read],
            functions: vec![Name::new("f").unwrap()],
            created_at_ms: u64::MAX,
            expires_at_ms: 0,
        };
        let text = list(&[key]);
        assert!(
            text.ends_with("web    invoke,read   f           just now   1970-01-01T00:00:00.000Z (expired)"),
            "{text}"
        );
        assert!(list(&[]).contains("weir keys create"));
    }
}
