//! `weir secrets`.

mod value;

use crate::client::Client;
use crate::commands::CommandContext;
use crate::error::Problem;
use crate::output::{OutputSettings, age, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use serde_json::json;
use std::path::{Path, PathBuf};
use ureq::SendBody;
use ureq::http::Method;
use value::Value;
use weir_types::SecretName;
use weir_types::api::{Secret, SecretRotation};

/// Manage secrets of functions: values that functions get, and that no command shows again
///
/// A function gets the secrets that its manifest grants, as environment variables (`secrets` in
/// weir.toml, or `weir deploy --secrets`). The node stores them encrypted.
///
/// Examples:
///   weir secrets set API_KEY                   # asks for the value
///   weir secrets set API_KEY --from-file key.txt
///   printf %s "$KEY" | weir secrets set API_KEY
///   weir secrets                               # list all secrets, without values
///   weir secrets delete API_KEY
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct SecretsArgs {
    #[command(subcommand)]
    action: Option<SecretAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum SecretAction {
    /// List all secrets, without values (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Store a value from standard input, a file or a prompt: of a new or an existing secret
    ///
    /// The last line ending of standard input is left out. New instances of functions get the new
    /// value, without a deploy.
    Set(SetArgs),
    /// Show when a secret was stored, and the functions that get it
    Show {
        /// Name of the secret
        name: SecretName,
    },
    /// Delete a secret
    #[command(visible_alias = "rm")]
    Delete {
        /// Name of the secret
        name: SecretName,
        /// Delete it although functions get it, whose calls then fail
        #[arg(long)]
        force: bool,
    },
    /// Encrypt all secrets with the first key of the node's key file
    Rotate,
    /// Make a key file, without a node
    ///
    /// The nodes of a cluster need a common key file (sandbox.secrets.key_file).
    NewKey {
        /// Path of the file
        file: PathBuf,
        /// Add a key to an existing file as its first line, and keep the earlier ones
        #[arg(long)]
        add: bool,
    },
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Name of the secret
    name: SecretName,
    /// File with the value, which is stored as it is
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// Store the value although the node lacks the key of other secrets
    #[arg(long)]
    force: bool,
    /// A value, which is refused: other users of the machine see the arguments of processes
    #[arg(hide = true)]
    value: Option<String>,
}

pub(crate) fn run(args: SecretsArgs, context: &CommandContext) -> Result<()> {
    let SecretsArgs { action, client } = args;
    let node = || Node::open(&client, context);
    match action.unwrap_or(SecretAction::List) {
        SecretAction::List => node()?.list(),
        SecretAction::Set(args) => node()?.set(args),
        SecretAction::Show { name } => node()?.show(&name),
        SecretAction::Delete { name, force } => node()?.delete(&name, force),
        SecretAction::Rotate => node()?.rotate(),
        SecretAction::NewKey { file, add } => new_key(&file, add, context),
    }
}

fn new_key(file: &Path, add: bool, context: &CommandContext) -> Result<()> {
    let make = if add { weir_host::add_secrets_key } else { weir_host::make_secrets_key };
    make(file).map_err(|error| {
        let problem = Problem::new(error.to_string());
        if add { problem } else { problem.hint("--add adds a key to an existing file") }
    })?;
    context.output.result(&json!({ "file": file }), |_| format!("wrote {}", file.display()))
}

/// The node with the secrets.
struct Node {
    client: Client,
    output: OutputSettings,
}

impl Node {
    fn open(args: &ClientArgs, context: &CommandContext) -> Result<Self> {
        Ok(Self { client: context.client(args)?, output: context.output })
    }

    fn list(&self) -> Result<()> {
        let secrets: Vec<Secret> = self.client.get("/v1/secrets", "list the secrets")?;
        self.output.result(&secrets, |secrets| list(secrets))
    }

    fn show(&self, name: &SecretName) -> Result<()> {
        let what = format!("show the secret {name}");
        let secret: Secret = self.client.get(&format!("/v1/secrets/{name}"), &what)?;
        self.output.result(&secret, details)
    }

    fn delete(&self, name: &SecretName, force: bool) -> Result<()> {
        let path = format!("/v1/secrets/{name}{}", query(force));
        self.client.delete(&path, &format!("delete the secret {name}"))?;
        self.output.result(&json!({ "removed": name }), |_| format!("removed {name}"))
    }

    fn rotate(&self) -> Result<()> {
        let what = "rotate the keys of the secrets";
        let path = "/v1/secret-keys/rotate";
        let rotation: SecretRotation = self.client.call(Method::POST, path, what, SendBody::none())?;
        self.output.result(&rotation, rotated)
    }

    fn set(&self, args: SetArgs) -> Result<()> {
        let SetArgs { name, from_file, force, value } = args;
        if value.is_some() {
            let text = "a value is not an argument: other users of the machine see the arguments of processes, and the shell keeps them in its history";
            let hint = format!(
                "run `weir secrets set {name}` and type the value, or pipe it to the command, or give --from-file FILE"
            );
            return Err(Problem::usage(text).hint(hint).into());
        }
        let value = match &from_file {
            Some(file) => Value::from_file(file)?,
            None => Value::from_input(&name)?,
        };
        let path = format!("/v1/secrets/{name}{}", query(force));
        let what = format!("store the secret {name}");
        let mut bytes = value.bytes();
        let body = SendBody::from_reader(&mut bytes);
        let secret: Secret = self.client.call(Method::PUT, &path, &what, body)?;
        self.output.result(&secret, |secret| format!("stored {} (version {})", secret.name, secret.version))
    }
}

fn query(force: bool) -> &'static str {
    if force { "?force=true" } else { "" }
}

fn list(secrets: &[Secret]) -> String {
    if secrets.is_empty() {
        return "no secrets; `weir secrets set NAME` stores one".into();
    }
    let row = |secret: &Secret| {
        [
            secret.name.to_string(),
            secret.version.to_string(),
            age(secret.updated_at_ms),
            functions(secret),
            key(secret),
        ]
    };
    table(["NAME", "VERSION", "UPDATED", "FUNCTIONS", "KEY"], secrets.iter().map(row))
}

fn details(secret: &Secret) -> String {
    let rows = [
        ("name", secret.name.to_string()),
        ("version", secret.version.to_string()),
        ("size", format!("{} bytes", secret.value_bytes)),
        ("created", time(secret.created_at_ms)),
        ("updated", time(secret.updated_at_ms)),
        ("functions", functions(secret)),
        ("key", key(secret)),
    ];
    rows.map(|(what, value)| format!("{what:<12} {value}\n")).concat()
}

fn functions(secret: &Secret) -> String {
    if secret.functions.is_empty() {
        return "none".into();
    }
    secret.functions.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn key(secret: &Secret) -> String {
    let unusable = if secret.usable { "" } else { " (this node lacks it)" };
    format!("{}{unusable}", secret.key_id)
}

fn rotated(rotation: &SecretRotation) -> String {
    let SecretRotation { key_id, rotated, unusable } = rotation;
    let mut text = format!("encrypted {rotated} secrets with the key {key_id}\n");
    if *unusable > 0 {
        text.push_str(&format!("{unusable} secrets have a key that the node lacks, and stay as they are\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, Version};

    #[test]
    fn secrets_are_listed_with_users_and_unusable_keys() {
        let secret = Secret {
            name: SecretName::new("API_KEY").unwrap(),
            version: Version(3),
            value_bytes: 7,
            created_at_ms: u64::MAX,
            updated_at_ms: u64::MAX,
            key_id: "0123".to_owned(),
            usable: false,
            functions: vec![Name::new("f").unwrap(), Name::new("g").unwrap()],
        };
        let text = list(std::slice::from_ref(&secret));
        let row: Vec<_> = text.lines().last().unwrap().split("  ").map(str::trim).collect();
        let cells: Vec<_> = row.into_iter().filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["API_KEY", "3", "just now", "f,g", "0123 (this node lacks it)"], "{text}");
        assert!(details(&secret).contains("size         7 bytes\n"), "{}", details(&secret));
        assert!(list(&[]).contains("weir secrets set"));
    }
}
