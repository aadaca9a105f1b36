//! `weir cluster ca`.

mod serve;
mod store;
mod tokens;

pub(super) use store::write;

use crate::commands::CommandContext;
use crate::commands::up::block_on;
use crate::error::Problem;
use crate::output::{OutputSettings, table, time};
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use store::{Store, Subject};
use tokens::{TokenRecord, TokenTerms, Tokens};
use weir_types::Name;

/// Issue certificates by which the nodes of a cluster authenticate each other
///
/// Keep the folder of the authority away from nodes: the holder of ca-key.pem can add nodes. Give
/// each node ca.pem, crl.pem, and its own certificate and key.
///
/// Examples:
///   weir cluster ca create
///   weir cluster ca issue node-7 --host node-7.example --host 10.0.0.7
///   weir cluster ca revoke node-7              # then give all nodes the new crl.pem
///   weir cluster ca token create && weir cluster ca serve --listen 0.0.0.0:9348 --host ca.example
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CaArgs {
    /// Folder of the authority
    #[arg(long, value_name = "FOLDER", default_value = "weir-ca", global = true)]
    folder: PathBuf,
    #[command(subcommand)]
    action: CaAction,
}

#[derive(Debug, Subcommand)]
enum CaAction {
    /// Create an authority: ca.pem, ca-key.pem, and an empty revocation list, crl.pem
    Create,
    /// Issue a certificate: nodes/NAME/cert.pem and nodes/NAME/key.pem
    ///
    /// The certificate of a name replaces the earlier one, which is revoked.
    Issue(IssueArgs),
    /// Revoke the certificates of a node: adds them to crl.pem
    ///
    /// Nodes refuse a revoked node as soon as they have the new crl.pem, also on open connections.
    /// Revoke its access to etcd and to the blob store too.
    Revoke {
        /// Name of the node
        name: Name,
    },
    /// Manage join tokens, with which nodes get certificates from `weir cluster ca serve`
    #[command(subcommand)]
    Token(TokenAction),
    /// Issue certificates to nodes that show a join token, until Ctrl-C
    ///
    /// Nodes call it with `weir cluster join`, and later to renew their files: a node with the
    /// setting `node.cluster.tls.authority` calls it every hour. Keep it running for these nodes.
    Serve(serve::ServeArgs),
}

#[derive(Debug, Subcommand)]
enum TokenAction {
    /// Create a token, and print it; it cannot be shown again
    Create(TokenCreateArgs),
    /// List the tokens that are valid
    #[command(visible_alias = "ls")]
    List,
    /// Revoke a token. Certificates that nodes have got with it stay valid
    #[command(visible_alias = "rm")]
    Revoke {
        /// Identifier of the token
        id: String,
    },
}

#[derive(Debug, clap::Args)]
struct TokenCreateArgs {
    /// Minutes until the token expires
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=525_600))]
    minutes: u64,
    /// Number of nodes that may join with the token
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// Only name of a node for which the token is valid [default: any name that no node has]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
}

#[derive(Debug, clap::Args)]
struct IssueArgs {
    /// Name of the node, and of the folder of its files
    name: Name,
    /// Host name or IP address at which other nodes reach the node; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    host: Vec<String>,
    /// Days until the certificate expires
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// Files that a command has written.
#[derive(Debug, Serialize)]
struct CaFiles {
    files: Vec<PathBuf>,
    /// Serial numbers of revoked certificates.
    revoked: Vec<String>,
}

pub(super) fn run(args: &CaArgs, context: &CommandContext) -> Result<()> {
    let store = Store::new(&args.folder);
    let output = context.output;
    let written = match &args.action {
        CaAction::Create => CaFiles { files: store.create()?, revoked: Vec::new() },
        CaAction::Issue(IssueArgs { name, host, days }) => {
            let subject = Subject { name, hosts: host, days: *days };
            let (files, revoked) = store.lock()?.issue(subject)?;
            CaFiles { files, revoked }
        }
        CaAction::Revoke { name } => {
            let revoked = store.lock()?.revoke(name)?;
            if revoked.is_empty() {
                let message = format!("{} has no certificate of `{name}`", args.folder.display());
                let hint = "`weir cluster ca issue NAME --host HOST` issues one";
                return Err(Problem::usage(message).hint(hint).into());
            }
            CaFiles { files: vec![store.crl()], revoked }
        }
        CaAction::Token(action) => return token(action, &store, output),
        CaAction::Serve(args) => return block_on(serve::serve(args, store, output)),
    };
    output.result(&written, |written| {
        let files = written.files.iter().map(|file| format!("wrote {}", file.display()));
        let revoked =
            written.revoked.iter().map(|serial| format!("revoked {serial}: give all nodes the new crl.pem"));
        files.chain(revoked).collect::<Vec<_>>().join("\n")
    })
}

/// A token as it is shown.
#[derive(Debug, Serialize)]
struct ShownToken {
    id: String,
    expires_at_ms: u64,
    uses: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Name>,
    /// Only when it is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl From<TokenRecord> for ShownToken {
    fn from(record: TokenRecord) -> Self {
        let TokenRecord { id, expires_at_ms, uses, name, .. } = record;
        Self { id, expires_at_ms, uses, name, token: None }
    }
}

fn token(action: &TokenAction, store: &Store, output: OutputSettings) -> Result<()> {
    let locked = store.lock()?;
    let tokens = Tokens::new(store);
    match action {
        TokenAction::Create(TokenCreateArgs { minutes, uses, name }) => {
            let lifetime = Duration::from_secs(minutes * 60);
            let (token, record) =
                tokens.create(&locked, TokenTerms { lifetime, uses: *uses, name: name.clone() })?;
            let shown = ShownToken { token: Some(token.to_string()), ..record.into() };
            output.note(format_args!(
                "the token {} is valid until {}; it is not stored",
                shown.id,
                time(shown.expires_at_ms)
            ));
            output.result(&shown, |shown| shown.token.clone().unwrap_or_default())
        }
        TokenAction::List => {
            let listed: Vec<ShownToken> = tokens.list(&locked)?.into_iter().map(ShownToken::from).collect();
            output.result(&listed, |listed| list(listed))
        }
        TokenAction::Revoke { id } => {
            if !tokens.remove(&locked, id)? {
                let hint = "`weir cluster ca token list` shows the identifiers of valid tokens";
                return Err(Problem::usage(format!("there is no token {id:?}")).hint(hint).into());
            }
            output.result(&serde_json::json!({ "revoked": id }), |_| format!("revoked {id}"))
        }
    }
}

fn list(tokens: &[ShownToken]) -> String {
    if tokens.is_empty() {
        return "no join tokens; `weir cluster ca token create` makes one".into();
    }
    let row = |token: &ShownToken| {
        let name = token.name.as_ref().map_or("any".to_owned(), Name::to_string);
        [token.id.clone(), name, token.uses.to_string(), time(token.expires_at_ms)]
    };
    table(["TOKEN", "NODE", "USES", "EXPIRES"], tokens.iter().map(row))
}
