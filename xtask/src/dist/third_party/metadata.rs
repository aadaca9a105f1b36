//! The packages from other sources that the program links, from cargo's metadata.

use crate::process;
use crate::repo::Repo;
use crate::ui;
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

/// A package that the program, or one of its macros or build scripts, links.
pub(super) struct LinkedPackage {
    /// Type of the package in its package URL: `cargo` or `npm`.
    pub(super) registry: &'static str,
    pub(super) name: String,
    pub(super) version: String,
    /// Licences as an SPDX expression.
    pub(super) licence: String,
    pub(super) authors: Vec<String>,
    /// Folder of the sources.
    pub(super) folder: PathBuf,
    /// SHA-256 of the package in its registry, in hexadecimal.
    pub(super) checksum: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<RawPackage>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct RawPackage {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    manifest_path: PathBuf,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<ResolvedNode>,
}

#[derive(Deserialize)]
struct ResolvedNode {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `None` for a normal dependency.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// The packages of `weir` for this machine's platform, by name and version.
pub(super) fn packages(repo: &Repo) -> Result<Vec<LinkedPackage>> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = repo.cargo(".");
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform]);
    let metadata: Metadata = serde_json::from_str(&process::answer(&mut cargo)?)
        .context("unexpected output of `cargo metadata`")?;
    let lock = std::fs::read_to_string(repo.root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let lock: Lock = toml::from_str(&lock).context("cannot read Cargo.lock")?;
    let locked = lock.package.into_iter();
    let mut checksums: HashMap<_, _> =
        locked.map(|package| ((package.name, package.version), package.checksum)).collect();
    let linked = linked(&metadata);
    let from_elsewhere = metadata.packages.into_iter().filter(|package| package.source.is_some());
    let mut packages: Vec<LinkedPackage> = from_elsewhere
        .filter(|package| linked.contains(&package.id))
        .map(|RawPackage { name, version, license, authors, manifest_path, .. }| LinkedPackage {
            registry: "cargo",
            // Old manifests separate alternatives by a slash.
            licence: license.unwrap_or_default().replace(" / ", " OR ").replace('/', " OR "),
            authors,
            folder: manifest_path.parent().map(PathBuf::from).unwrap_or_default(),
            checksum: checksums.remove(&(name.clone(), version.clone())).flatten(),
            name,
            version,
        })
        .collect();
    packages.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    Ok(packages)
}

/// The npm packages of the dashboard, with their texts in `ui/node_modules`.
pub(super) fn of_dashboard(repo: &Repo) -> Result<Vec<LinkedPackage>> {
    let bundled = ui::bundled_packages(repo)?.into_iter();
    let package = |ui::BundledPackage { name, version, licence, folder }| LinkedPackage {
        registry: "npm",
        name,
        version,
        licence,
        authors: Vec::new(),
        folder,
        checksum: None,
    };
    Ok(bundled.map(package).collect())
}

/// The ids of all packages that `weir-cli` reaches by normal dependencies.
fn linked(metadata: &Metadata) -> BTreeSet<String> {
    let nodes: HashMap<&str, &ResolvedNode> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let program = metadata.packages.iter().filter(|package| package.name == "weir-cli");
    let mut left: Vec<&str> = program.map(|package| package.id.as_str()).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !linked.insert(id.to_owned()) {
            continue;
        }
        let normal = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
        let dependencies = nodes.get(id).into_iter().flat_map(|node| &node.deps).filter(normal);
        left.extend(dependencies.map(|dependency| dependency.pkg.as_str()));
    }
    linked
}
