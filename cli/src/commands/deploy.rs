//! `weir deploy`.

mod grants;

use crate::client::Client;
use crate::commands::CommandContext;
use crate::commands::canary::{self, CanaryArgs};
use crate::commands::shadow::ShadowArgs;
use crate::commands::up::Signals;
use crate::commands::watch::{Deployer, LogFollower, Watcher};
use crate::error::Problem;
use crate::project::{BuildStop, check_component, describe};
use crate::settings::ClientArgs;
use crate::uploads::{Component, ComponentUpload};
use anyhow::Result;
pub(crate) use grants::GrantArgs;
use std::path::PathBuf;
use std::time::Duration;
use weir_types::api::Function;
use weir_types::{FunctionManifest, Name};

/// Time after Ctrl-C at which `--watch` abandons a request that the node has not answered.
const ABANDON: Duration = Duration::from_secs(1);

/// Deploy a function
///
/// The function is callable when this command returns. Running invocations finish on the previous
/// version.
///
/// Without FILE, builds the project in this folder and deploys it with the settings in weir.toml.
/// With FILE, deploys that component under NAME, or under the file's name. The function gets only
/// the permissions that the flags grant.
///
/// With --canary, the new version gets a share of the calls, and the previous version the others. The
/// node ends the canary if more of its calls fail or are slow. `weir promote` gives it all calls.
///
/// With --shadow, the node copies a percentage of the calls to the new version, and discards its
/// answers. `weir functions show NAME` compares both versions, and `weir rollback NAME` ends the copies.
///
/// With --preview, the new version gets no calls, except those that name it: /fn/NAME@VERSION/. `weir
/// promote NAME VERSION` gives it all calls.
///
/// With --watch, deploys the project again after every change of its files, and shows the function's
/// log until Ctrl-C. If weir.toml has a `watch_build`, an edit replaces the function's modules
/// without a new version; `weir deploy` afterwards makes the version to keep.
///
/// Examples:
///   weir deploy                                   # the project in this folder
///   weir deploy --watch                           # again after every change, with its log
///   weir deploy hello target/hello.wasm
///   weir deploy --canary 10                       # the new version gets 10 % of the calls
///   weir deploy --canary 10 --promote-after 5m    # and all of them, unless it fails more often
///   weir deploy --shadow 10                       # the new version gets copies of 10 % of the calls
///   weir deploy --preview                         # no calls, except at /fn/NAME@VERSION/
///   weir deploy digits digits.wasm --models digits --limit deadline_ms=5000
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DeployArgs {
    /// Name of the function [default: the name in weir.toml, or the file's name]
    #[arg(value_name = "NAME")]
    first: Option<String>,
    /// Component to deploy
    file: Option<PathBuf>,
    #[command(flatten)]
    grants: GrantArgs,
    /// Reject a component with imports that it is not granted, instead of failing its calls
    #[arg(long)]
    strict: bool,
    /// Deploy the component of the last build
    #[arg(long)]
    no_build: bool,
    /// Deploy the project again after every file change, and show the function's log
    #[arg(long, conflicts_with_all = ["no_build", "file", "canary", "shadow"])]
    watch: bool,
    #[command(flatten)]
    canary: CanaryArgs,
    #[command(flatten)]
    shadow: ShadowArgs,
    /// Give the new version no calls, except those that name it
    #[arg(long, conflicts_with_all = ["canary", "watch"])]
    preview: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &DeployArgs, context: &CommandContext) -> Result<()> {
    let client = context.client(&args.client)?;
    if args.watch {
        return watch(args, client, context);
    }
    let (name, component, manifest) = match What::from_args(args.first.as_deref(), args.file.clone())? {
        What::File(name, file) => (name, file, FunctionManifest::default()),
        What::Project(name) => {
            let project = context.project()?;
            let component = if args.no_build {
                project.built()?
            } else {
                let built = project.build(false, context.output, None)?;
                context.output.note(built.text().trim_end());
                built.component
            };
            (name.unwrap_or_else(|| project.function.name.clone()), component, project.manifest())
        }
    };
    let manifest = args.grants.add_to(manifest)?;
    check_component(&component)?;
    let deployment = ComponentUpload {
        name: &name,
        component: Component::File(&component),
        manifest: &manifest,
        strict: args.strict,
        role: args.role(),
    };
    let deployed = deployment.send(&client, context.output)?;
    match deployed.canary.filter(|canary| canary.promote_after_ms.is_some()) {
        None => {
            let is_active = deployed.canary.is_none() && deployed.shadow.is_none() && !deployed.is_preview;
            let is_beside = args.canary.is_given() || args.shadow.is_given() || args.preview;
            if is_active && deployed.created && is_beside {
                context.output.note("no version was active before, so this one gets all calls");
            }
            context.output.result(&deployed, |deployed| describe(deployed, &client))
        }
        Some(canary) => {
            context.output.note(describe(&deployed, &client).trim_end());
            let function: Function = canary::wait(&name, canary, &client, context.output)?;
            context.output.result(&function, |function| {
                format!("{} is at version {} now", function.active.name, function.active.version)
            })
        }
    }
}

impl DeployArgs {
    /// The role of the new version beside the active one, as a query; empty for all calls.
    fn role(&self) -> Vec<(&'static str, String)> {
        let preview = self.preview.then(|| ("preview", "true".to_owned()));
        self.canary.query().into_iter().chain(self.shadow.query()).chain(preview).collect()
    }
}

/// Deploys the project after every change, until a signal.
fn watch(args: &DeployArgs, client: Client, context: &CommandContext) -> Result<()> {
    let name = match What::from_args(args.first.as_deref(), None)? {
        What::Project(name) => name,
        What::File(..) => {
            return Err(Problem::usage("--watch deploys a project, and this is a component")
                .hint("run it in the project's folder: weir deploy [NAME] --watch")
                .into());
        }
    };
    let file = match &context.file {
        Some(file) if file.function.is_some() => file,
        // Returns the error about the missing project.
        _ => return context.project().map(drop),
    };
    // Ends here if there is no node: a watcher would only repeat that.
    client.get::<serde_json::Value>("/v1/status", "ask for the node's status")?;
    let stop = BuildStop::default();
    let deployer = Deployer {
        file: file.path.clone(),
        name,
        grants: args.grants.clone(),
        strict: args.strict,
        follower: Some(LogFollower::new(context.client(&args.client)?, context.output, stop.clone())),
        client,
        output: context.output,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let data = file.folder.join("weir-data");
    let watched = runtime.block_on(async {
        // Before the first build, so that Ctrl-C always ends the build's processes too.
        let mut signals = Signals::new()?;
        let watcher = Watcher::start(deployer, Some(&data), stop)?;
        signals.next().await;
        let ended = tokio::task::spawn_blocking(move || watcher.stop());
        tokio::select! {
            _ = ended => {}
            () = tokio::time::sleep(ABANDON) => {}
            () = signals.next() => {}
        }
        Ok(())
    });
    // The thread may still wait for the node's answer.
    runtime.shutdown_background();
    watched
}

/// Meaning of the two positional arguments.
#[derive(Debug, PartialEq, Eq)]
enum What {
    /// The project, under another name if the arguments have one.
    Project(Option<Name>),
    File(Name, PathBuf),
}

impl What {
    fn from_args(first: Option<&str>, file: Option<PathBuf>) -> Result<Self> {
        match (first, file) {
            (None, _) => Ok(Self::Project(None)),
            (Some(name), Some(file)) => Ok(Self::File(function_name(name)?, file)),
            (Some(file), None) if file.ends_with(".wasm") || file.contains('/') => {
                let file = PathBuf::from(file);
                let stem =
                    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                Ok(Self::File(function_name(&stem)?, file))
            }
            (Some(name), None) => Ok(Self::Project(Some(function_name(name)?))),
        }
    }
}

fn function_name(text: &str) -> Result<Name> {
    Name::new(text).map_err(|error| {
        Problem::usage(format!("{text:?} cannot be a function's name"))
            .because(error)
            .hint("give the name first: weir deploy NAME FILE.wasm")
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_argument_with_wasm_or_slash_is_a_file() {
        let of = |first: Option<&str>, file: Option<&str>| {
            What::from_args(first, file.map(PathBuf::from)).unwrap()
        };
        let name = |text: &str| Name::new(text).unwrap();
        assert_eq!(of(None, None), What::Project(None));
        assert_eq!(of(Some("hello"), None), What::Project(Some(name("hello"))));
        assert_eq!(of(Some("a/hello.wasm"), None), What::File(name("hello"), "a/hello.wasm".into()));
        assert_eq!(of(Some("x"), Some("hello.wasm")), What::File(name("x"), "hello.wasm".into()));
        assert!(What::from_args(Some("Upper.wasm"), None).is_err());
    }
}
