//! Aliases of the versions of functions, models and workflows.

use crate::commands::collection::Collection;
use crate::error::Problem;
use crate::output::{age, table};
use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use weir_types::api::{AliasRequest, AliasTarget, Aliases};
use weir_types::{Alias, Name, Version};

/// The arguments of `weir models alias`, and of the same command of functions and workflows.
#[derive(Debug, clap::Args)]
pub(super) struct AliasArgs {
    /// Name of the item
    name: Name,
    /// Alias, such as stable [default: lists the aliases that were set]
    alias: Option<Alias>,
    /// Version that the alias names
    #[arg(value_parser = clap::value_parser!(u32).range(1..), requires = "alias")]
    version: Option<u32>,
    /// Return to the version that the alias named before
    #[arg(long, requires = "alias", conflicts_with_all = ["version", "remove"])]
    rollback: bool,
    /// Remove the alias
    #[arg(long, requires = "alias", conflicts_with = "version")]
    remove: bool,
}

/// An item with its aliases.
#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    aliases: Aliases,
}

pub(super) fn run(args: &AliasArgs, items: &Collection) -> Result<()> {
    let AliasArgs { name, alias, version, rollback, remove } = args;
    let Some(alias) = alias else { return list(name, items) };
    let path = format!("{}/aliases/{alias}", items.path(name));
    if *remove {
        items.client.delete(&path, &format!("remove the alias {alias} of {name}"))?;
        let what = format!("{name}:{alias}");
        return items.output.result(&json!({ "removed": what }), |_| format!("removed the alias {what}"));
    }
    let target: AliasTarget = match version {
        Some(version) => {
            let request = AliasRequest { version: Version(*version) };
            items.client.put_json(&path, &format!("set the alias {alias} of {name}"), &request)?
        }
        None if *rollback => {
            let doing = format!("roll back the alias {alias} of {name}");
            items.client.post(&format!("{path}/rollback"), &doing, &())?
        }
        None => {
            let text = format!("alias {alias} needs a version, --rollback or --remove");
            let hint = format!("such as: weir {} alias {name} {alias} 1", items.segment);
            return Err(Problem::new(text).hint(hint).into());
        }
    };
    items.output.result(&target, |target| format!("{name}:{alias} is version {} now", target.version))
}

fn list(name: &Name, items: &Collection) -> Result<()> {
    let Item { aliases } = items.get(name)?;
    items.output.result(&aliases, |aliases| {
        if aliases.is_empty() {
            return format!("{name} has no aliases that were set; stable is its active version");
        }
        let previous = |target: &AliasTarget| {
            target.previous.map_or_else(|| "-".to_owned(), |version| version.to_string())
        };
        let rows = aliases.iter().map(|(alias, target)| {
            [alias.to_string(), target.version.to_string(), previous(target), age(target.changed_at_ms)]
        });
        table(["ALIAS", "VERSION", "PREVIOUS", "CHANGED"], rows)
    })
}

/// The aliases of an item on one line, for its description. `None` without aliases.
pub(super) fn on_one_line(aliases: &Aliases) -> Option<String> {
    let each = aliases.iter().map(|(alias, target)| format!("{alias} = {}", target.version));
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| each.join(", "))
}
