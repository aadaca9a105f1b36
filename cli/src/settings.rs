//! Sources of settings, in order of precedence: flags, environment (both through clap),
//! `weir.toml`, defaults.

mod file;
pub(crate) use file::{ConfigFile, FunctionProject};

mod node;
pub(crate) use node::NodeArgs;

use crate::error::Problem;
use anyhow::Result;
use clap::Args;
use std::path::{Path, PathBuf};
use weir_types::api::DEFAULT_PORT;

/// Node address and token of a command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct ClientArgs {
    /// The node's URL [default: the url in weir.toml, or http://127.0.0.1:9347]
    #[arg(long, value_name = "URL", env = "WEIR_URL", global = true)]
    pub(crate) url: Option<String>,
    /// File whose first word is the token to send; a node's token file works too
    #[arg(long, value_name = "FILE", env = "WEIR_TOKEN_FROM", global = true)]
    pub(crate) token_from: Option<PathBuf>,
    /// Token to send; prefer the environment or a file, because other users can see the command
    /// line
    #[arg(
        long,
        value_name = "TOKEN",
        env = "WEIR_TOKEN",
        hide_env_values = true,
        conflicts_with = "token_from",
        global = true
    )]
    pub(crate) token: Option<String>,
    /// PEM file of the authorities that may sign the node's certificate, for https://
    /// [default: the public authorities that browsers know]
    #[arg(long, value_name = "FILE", env = "WEIR_CA_FILE", global = true)]
    pub(crate) ca_file: Option<PathBuf>,
}

/// Address and credentials of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeEndpoint {
    /// `http://host:port` or `https://host:port`, without a trailing slash.
    pub(crate) url: String,
    /// Bearer token.
    pub(crate) token: Option<String>,
    /// Certificates that the node may have.
    pub(crate) trust: Trust,
}

/// Certificates that a node may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Those of the public authorities.
    #[default]
    Public,
    /// Those of the authorities in this PEM file.
    File(PathBuf),
    /// Any: the node runs in this process, which owns the port.
    OwnProcess,
}

impl ClientArgs {
    /// Resolves the arguments with `weir.toml` and the defaults.
    pub(crate) fn endpoint(&self, file: Option<&ConfigFile>) -> Result<NodeEndpoint> {
        let token_from = file.and_then(|file| file.client.token_from.as_deref());
        let token = match (&self.token, self.token_from.as_deref().or(token_from)) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(path)) => Some(first_token(path)?),
            (None, None) => None,
        };
        let ca_file = self.ca_file.clone().or_else(|| file.and_then(|file| file.client.ca_file.clone()));
        Ok(NodeEndpoint { url: self.url(file)?, token, trust: ca_file.map_or(Trust::Public, Trust::File) })
    }

    /// Resolves the node's URL.
    pub(crate) fn url(&self, file: Option<&ConfigFile>) -> Result<String> {
        let url = self.url.clone().or_else(|| file.and_then(|file| file.client.url.clone()));
        normal_url(&url.unwrap_or_else(|| format!("http://127.0.0.1:{DEFAULT_PORT}")))
    }
}

/// Returns the first token of a file of `TOKEN [TENANT]` lines, so that a node's token file works
/// for its client too. Skips the operator's token (tenant `*`), which is useless for client
/// requests.
pub(crate) fn first_token(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Problem::new(format!("cannot read the token file {}", path.display()))
            .because(error)
            .hint("--token-from, or token_from in [client] of weir.toml, names a file that holds the token")
    })?;
    let mut lines = text.lines().map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        (words.next(), words.next())
    });
    lines
        .find_map(|(token, tenant)| token.filter(|_| !tenant.is_some_and(|tenant| tenant.starts_with('*'))))
        .map(str::to_owned)
        .ok_or_else(|| Problem::usage(format!("{} holds no token", path.display())).into())
}

/// Normalises a node's URL. Accepts `host:port`; rejects a path, which would be ignored.
pub(crate) fn normal_url(text: &str) -> Result<String> {
    let wrong = |why: &str| {
        Problem::usage(format!("{text:?} is not a node's address: {why}"))
            .hint("write it like http://127.0.0.1:9347")
    };
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: ureq::http::Uri = url.parse().map_err(|error| wrong("it cannot be read").because(error))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("it starts with neither http:// nor https://").into());
    }
    if uri.path() != "/" || uri.query().is_some() {
        return Err(wrong("it goes on after the host and port").into());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, ConfigFile) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("weir.toml"), text).unwrap();
        let file = ConfigFile::read(&folder.path().join("weir.toml")).unwrap();
        (folder, file)
    }

    #[test]
    fn arguments_override_the_file_and_the_file_overrides_defaults() {
        let (folder, file) =
            file("[client]\nurl = \"http://file:1\"\ntoken_from = \"secret\"\nca_file = \"ca.pem\"\n");
        std::fs::write(folder.path().join("secret"), "# tokens\n\noperator *\n from-file tenant\nother\n")
            .unwrap();
        let none = ClientArgs::default();
        assert_eq!(
            none.endpoint(None).unwrap(),
            NodeEndpoint { url: "http://127.0.0.1:9347".into(), token: None, trust: Trust::Public }
        );
        let trust = Trust::File(folder.path().join("ca.pem"));
        let from_file = NodeEndpoint { url: "http://file:1".into(), token: Some("from-file".into()), trust };
        assert_eq!(none.endpoint(Some(&file)).unwrap(), from_file);
        let args = ClientArgs {
            url: Some("flag:2".into()),
            token: Some("flag".into()),
            token_from: None,
            ca_file: Some("other.pem".into()),
        };
        let trust = Trust::File("other.pem".into());
        assert_eq!(
            args.endpoint(Some(&file)).unwrap(),
            NodeEndpoint { url: "http://flag:2".into(), token: Some("flag".into()), trust }
        );
    }

    #[test]
    fn missing_or_empty_token_file_is_an_error() {
        let (folder, file) = file("[client]\ntoken_from = \"secret\"\n");
        assert!(ClientArgs::default().endpoint(Some(&file)).is_err());
        std::fs::write(folder.path().join("secret"), "# nothing\n").unwrap();
        assert!(ClientArgs::default().endpoint(Some(&file)).is_err());
    }

    #[test]
    fn node_urls_are_validated() {
        assert_eq!(normal_url("localhost:80").unwrap(), "http://localhost:80");
        assert_eq!(normal_url("https://weir.example/").unwrap(), "https://weir.example");
        for bad in ["ftp://x", "http://x/v1", "http://x?y", "", "http://a b"] {
            assert!(normal_url(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
