//! `weir demo`.

use crate::client::{Client, UploadReader};
use crate::commands::CommandContext;
use crate::commands::up::logging::{self, LogArgs};
use crate::commands::up::{self, InitArgs, Signals};
use crate::error::Problem;
use crate::output::OutputSettings;
use crate::settings::{NodeEndpoint, Trust};
use anyhow::{Context as _, Result};
use lzma_rust2::XzReader;
use std::io::{IsTerminal as _, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use ureq::SendBody;
use ureq::http::Method;
use weir_host::NodeConfig;
use weir_types::api::{DEFAULT_PORT, Deployed, ModelVersion};

/// Compressed component of the example; empty in programs that were compiled before it.
const COMPONENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/classify-digits.wasm.xz"));
/// Model of the example.
const MODEL: &[u8] = include_bytes!("../../../functions/classify-digits/model/digits.onnx");
/// Picture of a handwritten 7.
const PICTURE: &[u8] = include_bytes!("../../../functions/classify-digits/samples/7.png");

/// Default log filter: the output is the example's.
const FILTER_DEFAULT: &str = "warn";
/// Time for requests in progress at the end of the demo, whose data is removed.
const DRAIN_MS: u64 = 500;

/// Run a node with an example: a function that recognizes handwritten digits
///
/// Starts a node with its data in a temporary folder, pushes the example's model, deploys its
/// function, calls it with a picture, and opens the dashboard in a browser. The node runs until
/// Ctrl-C, which also removes the data.
///
/// Examples:
///   weir demo
///   weir demo --listen 127.0.0.1:0 --no-open
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DemoArgs {
    /// Listen address; port 0 selects a free port [default: 127.0.0.1:9347]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Do not open the dashboard
    #[arg(long)]
    no_open: bool,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: &DemoArgs, context: &CommandContext) -> Result<()> {
    if COMPONENT.is_empty() {
        return Err(Problem::new("this program was compiled without the example")
            .hint("in the repository: `cargo xtask functions classify-digits`, and compile `weir` again; releases contain the example")
            .into());
    }
    let folder = tempfile::Builder::new().prefix("weir-demo-").tempdir();
    let folder = folder.context("cannot make a temporary folder for the node's data")?;
    let mut config = NodeConfig { data: folder.path().join("data"), ..NodeConfig::default() };
    config.listen = args.listen.unwrap_or(config.listen);
    config.gateway.drain_timeout_ms = DRAIN_MS;
    logging::start(&args.log, FILTER_DEFAULT)?;
    up::block_on(serve(config, folder.path().to_owned(), !args.no_open, context.output))
}

async fn serve(config: NodeConfig, folder: PathBuf, open: bool, output: OutputSettings) -> Result<()> {
    let mut signals = Signals::new()?;
    let Some(node) = up::start_node(config, InitArgs::default(), &mut signals, output).await? else {
        return Ok(());
    };
    let url = up::client_url(&node);
    let mut example = tokio::task::spawn_blocking(move || Example { folder, url, output }.run(open));
    let result = tokio::select! {
        result = &mut example => Some(result?),
        () = signals.next() => None,
    };
    if matches!(result, Some(Ok(()))) {
        signals.next().await;
    }
    up::finish(node, (), &mut signals, output).await;
    // A set-up that a signal ends fails without its node. Its files are removed afterwards.
    let Some(result) = result else {
        let _ = example.await;
        return Ok(());
    };
    result
}

/// The example on a running node.
struct Example {
    folder: PathBuf,
    url: String,
    output: OutputSettings,
}

impl Example {
    fn run(self, open: bool) -> Result<()> {
        let Self { folder, url, output } = &self;
        let client = Client::new(NodeEndpoint { url: url.clone(), token: None, trust: Trust::OwnProcess })?;
        let model: ModelVersion =
            self.put(&client, "digits.onnx", MODEL, "/v1/models/digits/versions/1", "optimising the model")?;
        output.note(format_args!("pushed the model digits, version {}", model.version));
        let path = "/v1/functions/classify-digits?models=digits";
        let mut component = Vec::new();
        XzReader::new(COMPONENT, false).read_to_end(&mut component)?;
        let deployed: Deployed =
            self.put(&client, "classify-digits.wasm", &component, path, "compiling the function")?;
        output.note(format_args!(
            "deployed the function classify-digits, version {}",
            deployed.function.version
        ));
        let picture = write(folder, "7.png", PICTURE)?;
        let start = Instant::now();
        let mut body = PICTURE;
        let body = SendBody::from_reader(&mut body);
        let request = client.request(Method::POST, "/fn/classify-digits/", body)?;
        let mut response = client.send(request)?;
        if !response.status().is_success() {
            return Err(crate::client::refusal(response, "classify the picture").into());
        }
        let answer: serde_json::Value = response.body_mut().read_json()?;
        let took_ms = start.elapsed().as_millis();
        let dashboard = format!("{url}/ui");
        let result = serde_json::json!({ "answer": answer, "took_ms": took_ms, "dashboard": dashboard, "picture": picture });
        let default = format!("http://127.0.0.1:{DEFAULT_PORT}");
        let deploy =
            if *url == default { "weir deploy".to_owned() } else { format!("weir deploy --url {url}") };
        output.result(&result, |_| {
            format!(
                "called it with a picture of a 7, and got after {took_ms} ms: {answer}\n\n\
                 dashboard: {dashboard}\n\
                 call it:   curl --data-binary @{} {url}/fn/classify-digits/\n\
                 next:      weir new hello && cd hello && {deploy}, in another terminal\n\n\
                 Ctrl-C ends the node and removes its data",
                picture.display()
            )
        })?;
        if open && std::io::stdout().is_terminal() {
            open_in_browser(&dashboard);
        }
        Ok(())
    }

    /// Uploads `content`, whose file the user finds in the folder of the demo.
    fn put<T: serde::de::DeserializeOwned>(
        &self,
        client: &Client,
        name: &str,
        content: &[u8],
        path: &str,
        then: &str,
    ) -> Result<T> {
        let file = write(&self.folder, name, content)?;
        let mut upload = UploadReader::open(&file, self.output, name, then)?;
        client.put(path, &format!("upload {name}"), &[], &mut upload)
    }
}

fn write(folder: &Path, name: &str, content: &[u8]) -> Result<PathBuf> {
    let file = folder.join(name);
    std::fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Opens `url` in the user's browser, if this session has a display.
fn open_in_browser(url: &str) {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|set| !set.is_empty()));
    if has_display {
        // Without `xdg-open`, the user opens the printed address.
        let _ = Command::new("xdg-open")
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
    }
}
