//! Actions that the node's collections share: list, show, roll back and remove.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::output::OutputSettings;
use crate::settings::ClientArgs;
use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use weir_types::api::VersionRequest;
use weir_types::{Name, Version};

/// An item of a collection.
#[derive(Debug, clap::Args)]
pub(super) struct NameArgs {
    /// Name of the item
    pub(super) name: Name,
}

/// An item to show.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// Name of the item
    pub(super) name: Name,
    /// Version to show [default: the active or newest version]
    #[arg(long, value_name = "N")]
    pub(super) version: Option<u32>,
}

/// A version to return to.
#[derive(Debug, clap::Args)]
pub(super) struct VersionArgs {
    /// Name of the item
    pub(super) name: Name,
    /// Version to return to [default: the version before the active or newest one]
    pub(super) version: Option<u32>,
}

/// An item or a version to remove.
#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    /// Name of the item
    pub(super) name: Name,
    /// Version to remove [default: all versions]
    #[arg(long, value_name = "N")]
    pub(super) version: Option<u32>,
}

/// A collection of named items below `/v1` of the node's API.
pub(super) struct Collection {
    pub(super) client: Client,
    pub(super) output: OutputSettings,
    /// Path segment, for example `kernel-graphs`.
    pub(super) segment: &'static str,
}

impl Collection {
    /// The collection `/v1/{segment}` of the node that the arguments select.
    pub(super) fn open(segment: &'static str, args: &ClientArgs, context: &CommandContext) -> Result<Self> {
        Ok(Self { client: context.client(args)?, output: context.output, segment })
    }

    /// Path of an item.
    pub(super) fn path(&self, name: &Name) -> String {
        format!("/v1/{}/{name}", self.segment)
    }

    /// Path of a version of an item.
    pub(super) fn version_path(&self, name: &Name, version: u32) -> String {
        format!("{}/versions/{version}", self.path(name))
    }

    /// Prints all items.
    pub(super) fn list<T: DeserializeOwned + Serialize>(
        &self,
        format: impl FnOnce(&[T]) -> String,
    ) -> Result<()> {
        let what = format!("list the {}", self.segment.replace('-', " "));
        let items: Vec<T> = self.client.get(&format!("/v1/{}", self.segment), &what)?;
        self.output.result(&items, |items| format(items))
    }

    /// Prints the versions of an item.
    pub(super) fn list_versions<T: DeserializeOwned + Serialize>(
        &self,
        name: &Name,
        format: impl FnOnce(&[T]) -> String,
    ) -> Result<()> {
        let path = format!("{}/versions", self.path(name));
        let versions: Vec<T> = self.client.get(&path, &format!("list the versions of {name}"))?;
        self.output.result(&versions, |versions| format(versions))
    }

    /// The item, with all its versions.
    pub(super) fn get<T: DeserializeOwned>(&self, name: &Name) -> Result<T> {
        self.client.get(&self.path(name), &format!("show {name}"))
    }

    /// A version of an item.
    pub(super) fn get_version<T: DeserializeOwned>(&self, name: &Name, version: u32) -> Result<T> {
        self.client.get(&self.version_path(name, version), &format!("show version {version} of {name}"))
    }

    /// Prints an item, or the version in `args`.
    pub(super) fn show<T, V>(
        &self,
        args: &ShowArgs,
        format: impl FnOnce(&T) -> String,
        format_version: impl FnOnce(&V) -> String,
    ) -> Result<()>
    where
        T: DeserializeOwned + Serialize,
        V: DeserializeOwned + Serialize,
    {
        match args.version {
            None => self.output.result(&self.get::<T>(&args.name)?, format),
            Some(version) => self.output.result(&self.get_version::<V>(&args.name, version)?, format_version),
        }
    }

    /// Returns to an earlier version, and prints the result.
    pub(super) fn roll_back<T: DeserializeOwned + Serialize>(
        &self,
        args: &VersionArgs,
        format: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let body = VersionRequest { version: args.version.map(Version) };
        let path = format!("{}/rollback", self.path(&args.name));
        let now: T = self.client.post(&path, &format!("roll back {}", args.name), &body)?;
        self.output.result(&now, format)
    }

    /// Removes an item with all its versions, or the version in `args`.
    pub(super) fn remove(&self, RemoveArgs { name, version }: &RemoveArgs) -> Result<()> {
        let (path, what) = match *version {
            None => (self.path(name), name.to_string()),
            Some(version) => (self.version_path(name, version), format!("{name}:{version}")),
        };
        self.client.delete(&path, &format!("remove {what}"))?;
        self.output.result(&json!({ "removed": what }), |_| format!("removed {what}"))
    }
}
