//! Node settings. Flags and environment override `weir.toml`, which overrides defaults.

use super::ConfigFile;
use crate::error::Problem;
use anyhow::Result;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use toml::{Table, Value};
use weir_host::{ClusterConfig, DevicesConfig, NodeConfig};

/// Node settings on the command line, for commands that start a node or inspect its settings.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeArgs {
    /// Listen address; port 0 selects a free port [default: 127.0.0.1:9347]
    #[arg(long, value_name = "ADDR:PORT", env = "WEIR_LISTEN", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Folder for functions, models and the registry [default: weir-data]
    #[arg(long, value_name = "FOLDER", env = "WEIR_DATA")]
    data: Option<PathBuf>,
    /// Require a token of this file, which has one `TOKEN [TENANT]` per line; the tenant * may only
    /// read the metrics of all tenants, and the tenant *backup only make backups
    #[arg(long, value_name = "FILE", env = "WEIR_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of the node's certificate: clients speak TLS (https://)
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the certificate's private key
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Allow listening beyond loopback without tokens
    #[arg(long, env = "WEIR_INSECURE", value_parser = clap::builder::FalseyValueParser::new())]
    insecure: bool,
    /// Refuse to start unless the system provides every layer of confinement for worker processes
    #[arg(long)]
    require_confinement: bool,
    /// Devices that models run on: auto for the CPU and all GPUs, or a list such as cpu,cuda:0. none:
    /// other nodes of the cluster run the calls that this node accepts
    /// [default: auto]
    #[arg(long, value_name = "LIST", env = "WEIR_DEVICES")]
    devices: Option<DevicesConfig>,
    /// Path of libonnxruntime.so
    #[arg(long, value_name = "FILE", env = "WEIR_ONNXRUNTIME")]
    onnxruntime: Option<PathBuf>,
    /// Join the cluster of this etcd: etcd://HOST[:PORT][,HOST[:PORT]...][/ROOT]
    #[arg(long, value_name = "URL", env = "WEIR_DATASTORE")]
    datastore: Option<String>,
    /// Blob store for the cluster's components and models: s3://BUCKET[/PREFIX], with AWS_* from
    /// the environment, or file:///FOLDER that all nodes share
    #[arg(long, value_name = "URL", env = "WEIR_BLOBS")]
    blobs: Option<String>,
    /// File with the secret that the cluster's nodes share; optional with certificates
    /// (cluster.tls) and on loopback
    #[arg(long, value_name = "FILE", env = "WEIR_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// Address of this node for the other nodes of the cluster [default: the listen address]
    #[arg(long, value_name = "HOST:PORT", env = "WEIR_ADVERTISE")]
    advertise: Option<String>,
    /// Any other setting of [node]; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", env = "WEIR_SET")]
    set: Vec<String>,
}

impl NodeArgs {
    /// Resolves the settings with `weir.toml` and the defaults.
    pub(crate) fn config(&self, file: Option<&ConfigFile>) -> Result<NodeConfig> {
        let config = file.map_or_else(NodeConfig::default, |file| file.node.clone());
        let mut config = with_settings(config, &self.set)?;
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if let Some(data) = &self.data {
            config.data.clone_from(data);
        }
        if let Some(devices) = &self.devices {
            config.devices.clone_from(devices);
        }
        config.token_file = self.token_file.clone().or(config.token_file);
        let tls = &mut config.gateway.tls;
        tls.certificate = self.tls_cert.clone().or(tls.certificate.take());
        tls.key = self.tls_key.clone().or(tls.key.take());
        config.models.onnxruntime = self.onnxruntime.clone().or(config.models.onnxruntime);
        config.insecure |= self.insecure;
        config.models.require_confinement |= self.require_confinement;
        config.cluster = self.cluster(config.cluster)?;
        Ok(config)
    }

    /// Cluster settings, if flags or `weir.toml` have any.
    fn cluster(&self, from_file: Option<ClusterConfig>) -> Result<Option<ClusterConfig>> {
        let Self { datastore, blobs, secret_file, advertise, .. } = self;
        let is_asked_for =
            datastore.is_some() || blobs.is_some() || secret_file.is_some() || advertise.is_some();
        if from_file.is_none() && !is_asked_for {
            return Ok(None);
        }
        let from_file = from_file.unwrap_or_default();
        let cluster = ClusterConfig {
            datastore: datastore.clone().unwrap_or(from_file.datastore),
            blobs: blobs.clone().unwrap_or(from_file.blobs),
            secret_file: secret_file.clone().or(from_file.secret_file),
            advertise: advertise.clone().or(from_file.advertise),
            ..from_file
        };
        for (value, flag, example) in [
            (&cluster.datastore, "--datastore", "etcd://localhost"),
            (&cluster.blobs, "--blobs", "s3://weir"),
        ] {
            if value.is_empty() {
                return Err(Problem::usage(format!("a node of a cluster needs {flag}, such as {example}"))
                    .hint("`weir up` without these flags runs a single node")
                    .into());
            }
        }
        Ok(Some(cluster))
    }
}

/// Applies `settings` such as `sandbox.limit_caps.memory_bytes=1` to `config`. Each may be several,
/// with commas between them.
fn with_settings(config: NodeConfig, settings: &[String]) -> Result<NodeConfig> {
    if settings.is_empty() {
        return Ok(config);
    }
    let mut table = Table::try_from(&config)?;
    for setting in settings.iter().flat_map(|settings| split(settings)) {
        let wrong = |why: &str| {
            Problem::usage(format!("--set {setting}: {why}"))
                .hint("`weir config` shows every setting of [node] and its value")
        };
        let (path, text) = setting.split_once('=').ok_or_else(|| wrong("write it as KEY=VALUE"))?;
        put(&mut table, path, value(text))
            .ok_or_else(|| wrong("its key goes through a value that is not a table"))?;
        // Validate after each setting, so that the error names the invalid one.
        table.clone().try_into::<NodeConfig>().map_err(|error| wrong(error.message()))?;
    }
    Ok(table.try_into()?)
}

/// Splits settings at the commas that are not inside a list, a table or a string. An empty text, such
/// as that of an empty variable, has no setting.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let mut quote = None;
    text.split(|letter: char| {
        match letter {
            _ if quote.is_some() => quote = quote.filter(|quote| *quote != letter),
            '"' | '\'' => quote = Some(letter),
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0 && quote.is_none()
    })
    .filter(|setting| !setting.trim().is_empty())
    .collect()
}

/// Parses TOML, or takes the text as a string: `models.backend=fake` needs no quotes.
fn value(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok();
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.to_owned()))
}

fn put(table: &mut Table, path: &str, value: Value) -> Option<()> {
    let (table, key) = match path.split_once('.') {
        None => (table, path),
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Table(Table::new())).as_table_mut()?;
            return put(inner, rest, value);
        }
    };
    table.insert(key.to_owned(), value);
    Some(())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    // Accepts host names such as localhost.
    let mut found =
        text.to_socket_addrs().map_err(|error| format!("{error}; write it like 127.0.0.1:9347"))?;
    found.next().ok_or_else(|| "the name has no address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weir.toml");
        std::fs::write(
            &path,
            "[node]\nlisten = \"127.0.0.1:1\"\ninsecure = true\n[node.gateway]\nthreads = 3\n",
        )
        .unwrap();
        let file = ConfigFile::read(&path).unwrap();
        let args = NodeArgs { listen: Some(([127, 0, 0, 1], 0).into()), ..NodeArgs::default() };
        let config = args.config(Some(&file)).unwrap();
        assert_eq!(config.listen.port(), 0);
        assert_eq!((config.insecure, config.gateway.threads), (true, 3));
        assert_eq!(config.data, folder.path().join("weir-data"));
        let set = vec!["gateway.threads=5".into(), "models.backend=fake".into()];
        let args = NodeArgs { set, ..NodeArgs::default() };
        let config = args.config(Some(&file)).unwrap();
        assert_eq!((config.gateway.threads, config.models.backend), (5, weir_host::BackendKind::Fake));
    }

    #[test]
    fn lists_of_a_setting_are_not_split() {
        let text = "gateway.threads=3,gateway.access.pages.hosts=[\"a,b\", 'c'],data=x";
        assert_eq!(split(text), ["gateway.threads=3", "gateway.access.pages.hosts=[\"a,b\", 'c']", "data=x"]);
        assert!(split("").is_empty() && split("a=1,") == ["a=1"]);
        let args = NodeArgs { set: vec![text.into(), String::new()], ..NodeArgs::default() };
        let config = args.config(None).unwrap();
        assert_eq!((config.gateway.threads, config.gateway.access.pages.hosts.len()), (3, 2));
    }

    #[test]
    fn devices_are_configurable_by_file_and_flag() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weir.toml");
        let text = "[node]\ndevices = [\"cpu\", { device = \"cuda:1\", memory_share = 0.5, slots = 2 }]\n";
        std::fs::write(&path, text).unwrap();
        let file = ConfigFile::read(&path).unwrap();
        let config = NodeArgs::default().config(Some(&file)).unwrap();
        let DevicesConfig::List(devices) = &config.devices else { panic!("{:?}", config.devices) };
        assert_eq!((devices[0].slots, devices[1].slots, devices[1].memory_share), (None, Some(2), Some(0.5)));
        // The list survives serialization.
        let set = NodeArgs { set: vec!["gateway.threads=5".into()], ..NodeArgs::default() };
        assert_eq!(set.config(Some(&file)).unwrap().devices, config.devices);
        let args = NodeArgs { devices: Some("cpu".parse().unwrap()), ..NodeArgs::default() };
        assert_eq!(args.config(Some(&file)).unwrap().devices, "cpu".parse().unwrap());
        std::fs::write(&path, "[node]\ndevices = [\"gpu\"]\n").unwrap();
        let error = ConfigFile::read(&path).unwrap_err().to_string();
        assert!(error.contains("\"gpu\" is no device"), "{error}");
    }

    #[test]
    fn settings_may_be_nested_and_invalid_ones_are_named() {
        let set = |text: &str| with_settings(NodeConfig::default(), &[text.to_owned()]);
        let config = set("sandbox.limit_caps.memory_bytes=7").unwrap();
        assert_eq!(config.sandbox.limit_caps.memory_bytes, 7);
        assert_eq!(config.sandbox.instances_max, NodeConfig::default().sandbox.instances_max);
        for (text, what) in [
            ("gateway.thread=1", "unknown field `thread`"),
            ("gateways.threads=1", "unknown field `gateways`"),
            ("gateway.threads=many", "invalid type"),
            ("gateway.threads", "KEY=VALUE"),
            ("listen.port=1", "not a table"),
        ] {
            let error = set(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(what), "{error}");
        }
    }

    #[test]
    fn listen_address_may_be_a_host_name() {
        assert_eq!(address("127.0.0.1:0").unwrap().port(), 0);
        assert!(address("localhost:9347").unwrap().ip().is_loopback());
        assert!(address("9347").is_err());
    }
}
