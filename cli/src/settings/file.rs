//! `weir.toml`: one format for a node, its client and a function project.

use crate::error::Problem;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_host::NodeConfig;
use weir_types::{Cost, FunctionManifest, Limits, ModelRef, Name, ObjectGrants, Reuse, SecretGrants};

const FILE_NAME: &str = "weir.toml";

/// Parsed `weir.toml`. Relative paths in it start at its folder.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Folder of the file.
    pub(crate) folder: PathBuf,
    /// `[node]`: settings of the node that `weir up` starts.
    pub(crate) node: NodeConfig,
    /// `[client]`: node that the other commands connect to.
    pub(crate) client: ClientSettings,
    /// `[function]`: the project's function.
    pub(crate) function: Option<FunctionProject>,
}

/// Section `[client]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClientSettings {
    /// The node's URL.
    pub(crate) url: Option<String>,
    /// File whose first word is the token to send.
    pub(crate) token_from: Option<PathBuf>,
    /// PEM file of the authorities that may sign the node's certificate.
    pub(crate) ca_file: Option<PathBuf>,
}

/// Section `[function]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionProject {
    /// Name of the function on the node.
    pub(crate) name: Name,
    /// Shell command that builds the function, run in the project's folder.
    pub(crate) build: Option<String>,
    /// Shell command that builds the function for a watch: a component and its modules, apart.
    pub(crate) watch_build: Option<String>,
    /// Path of the component that the build creates.
    pub(crate) component: PathBuf,
    /// World in the project's `wit` folder for converting a core module into a component. Not
    /// needed with compilers that create components.
    pub(crate) world: Option<String>,
    /// Whether to pre-initialise the component after building it.
    #[serde(default)]
    pub(crate) snapshot: bool,
    /// Name of the initialisation export.
    pub(crate) snapshot_init: Option<String>,
    #[serde(default)]
    models: Vec<ModelRef>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    secrets: SecretGrants,
    #[serde(default)]
    outbound_hosts: Vec<String>,
    #[serde(default)]
    objects: ObjectGrants,
    #[serde(default)]
    idempotent: bool,
    #[serde(default)]
    public: bool,
    cache_ttl_ms: Option<u64>,
    #[serde(default, deserialize_with = "weir_types::reuse")]
    reuse: Option<Reuse>,
    slo_ms: Option<u64>,
    cost_slo: Option<Cost>,
    #[serde(default)]
    limits: Limits,
}

impl FunctionProject {
    /// The function's manifest.
    pub(crate) fn manifest(&self) -> FunctionManifest {
        // All fields are listed, so that a new manifest key causes a compile error here.
        FunctionManifest {
            models: self.models.clone(),
            env: self.env.clone(),
            secrets: self.secrets.clone(),
            outbound_hosts: self.outbound_hosts.clone(),
            objects: self.objects.clone(),
            idempotent: self.idempotent,
            public: self.public,
            cache_ttl_ms: self.cache_ttl_ms,
            reuse: self.reuse.clone(),
            slo_ms: self.slo_ms,
            cost_slo: self.cost_slo,
            limits: self.limits.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Content {
    node: NodeConfig,
    client: ClientSettings,
    function: Option<FunctionProject>,
}

impl ConfigFile {
    /// Finds the configuration file: the path `given`, or else the `weir.toml` in `folder` or its
    /// nearest parent. Returns `None` if there is none.
    pub(crate) fn find(given: Option<&Path>, folder: &Path) -> Result<Option<Self>> {
        if let Some(path) = given {
            return Self::read(path).map(Some);
        }
        let mut folders = folder.ancestors().map(|folder| folder.join(FILE_NAME));
        folders.find(|path| path.is_file()).map(|path| Self::read(&path)).transpose()
    }

    /// Reads one file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Problem::new(format!("cannot read {shown}")).because(error))?;
        let content: Content = toml::from_str(&text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            Problem::usage(format!("{shown}:{line}: {}", error.message())).hint(
                "`weir config` shows every key of [node]; `weir config --help` describes the file, [function] too",
            )
        })?;
        let path = std::path::absolute(path)?;
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        let Content { mut node, mut client, function } = content;
        node.data = folder.join(&node.data);
        let paths = [
            &mut node.token_file,
            &mut node.models.onnxruntime,
            &mut node.scheduler.record,
            &mut node.gateway.tls.certificate,
            &mut node.gateway.tls.key,
            &mut node.gateway.access.oidc.ca_file,
            &mut node.logs.audit.file,
            &mut node.traces.otlp.headers_file,
            &mut node.traces.otlp.ca,
            &mut node.sandbox.secrets.key_file,
            &mut client.token_from,
            &mut client.ca_file,
        ];
        for inside in paths {
            *inside = inside.as_ref().map(|relative| folder.join(relative));
        }
        if let Some(cluster) = &mut node.cluster {
            let tls = &mut cluster.tls;
            let etcd = &mut cluster.etcd;
            let of_nodes = [&mut tls.ca, &mut tls.certificate, &mut tls.key, &mut tls.crl];
            let of_etcd = [&mut etcd.ca, &mut etcd.certificate, &mut etcd.key, &mut cluster.secret_file];
            for inside in of_nodes.into_iter().chain(of_etcd) {
                *inside = inside.as_ref().map(|relative| folder.join(relative));
            }
        }
        Ok(Self { path, folder, node, client, function })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ConfigFile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        std::fs::write(&path, text).unwrap();
        ConfigFile::read(&path)
    }

    #[test]
    fn project_converts_to_its_manifest() {
        let file = read(
            "[function]\nname = \"digits\"\nbuild = \"make\"\ncomponent = \"out.wasm\"\nmodels = [\"digits:2\"]\n\
             idempotent = true\npublic = true\nslo_ms = 200\ncost_slo = 2\n[function.limits]\ndeadline_ms = 5\n[function.env]\nMODE = \"fast\"\n\
             [function.reuse]\ncalls_max = 9\n",
        );
        let manifest = file.unwrap().function.unwrap().manifest();
        assert_eq!(manifest.models, ["digits:2".parse().unwrap()]);
        assert_eq!(manifest.limits, Limits { deadline_ms: 5, ..Limits::default() });
        assert_eq!(manifest.env["MODE"], "fast");
        assert!(manifest.idempotent && manifest.public);
        assert_eq!(manifest.reuse, Some(Reuse { calls_max: 9, ..Reuse::default() }));
        assert_eq!((manifest.slo_ms, manifest.cost_slo), (Some(200), Cost::from_units(2.0)));
    }

    #[test]
    fn parse_errors_have_file_and_line() {
        for (text, line, what) in [
            ("[node]\nlisten = \"127.0.0.1:0\"\nlisen = 1\n", ":3:", "unknown field `lisen`"),
            ("[node.gateway]\nthread = 1\n", ":2:", "unknown field `thread`"),
            (
                "[function]\nname = \"x\"\ncomponent = \"x.wasm\"\nmodel = []\n",
                ":4:",
                "unknown field `model`",
            ),
            ("[function]\nname = \"X\"\ncomponent = \"x.wasm\"\n", ":2:", "a name holds only"),
            ("[function]\nname = \"x\"\n", ":1:", "missing field `component`"),
            ("[sever]\n", ":1:", "unknown field `sever`"),
            ("[node\n", ":1:", ""),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("weir.toml{line}")) && error.contains(what),
                "{text:?} gave {error}"
            );
        }
    }

    #[test]
    fn nearest_parent_file_applies_with_paths_relative_to_it() {
        let top = tempfile::tempdir().unwrap();
        let deep = top.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        assert!(ConfigFile::find(None, &deep).unwrap().is_none());
        let text = "[node]\ntoken_file = \"tokens\"\n[node.models]\nonnxruntime = \"lib.so\"\n\
                    [node.scheduler]\nrecord = \"record\"\n";
        std::fs::write(top.path().join(FILE_NAME), text).unwrap();
        let file = ConfigFile::find(None, &deep).unwrap().unwrap();
        assert_eq!(file.node.token_file.as_deref(), Some(&*top.path().join("tokens")));
        assert_eq!(file.node.models.onnxruntime.as_deref(), Some(&*top.path().join("lib.so")));
        assert_eq!(file.node.scheduler.record.as_deref(), Some(&*top.path().join("record")));
        assert_eq!(file.node.data, top.path().join("weir-data"));
        std::fs::write(top.path().join("a").join(FILE_NAME), "[client]\nurl = \"nearer\"\n").unwrap();
        let file = ConfigFile::find(None, &deep).unwrap().unwrap();
        assert_eq!(file.client.url.as_deref(), Some("nearer"));
        assert!(ConfigFile::find(Some(&top.path().join("missing.toml")), &deep).is_err());
    }
}
