//! Scripts of `ui/e2e/`, which open the dashboard of a node in Chromium.

use crate::TestClient;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Environment variable that makes a missing browser or dashboard an error.
const REQUIRED: &str = "WEIR_REQUIRE_CHROMIUM";

/// Chromium, driven by Playwright.
pub struct Browser {
    chromium: PathBuf,
}

impl Browser {
    /// Finds Chromium, the packages of `ui/`, and the dashboard of `node`. If something is missing,
    /// prints a reason to skip a test, or panics if `WEIR_REQUIRE_CHROMIUM` is set.
    pub async fn find(node: &TestClient) -> Option<Self> {
        let why = match Self::look(node).await {
            Ok(browser) => return Some(browser),
            Err(why) => why,
        };
        assert!(std::env::var_os(REQUIRED).is_none(), "{why}, and {REQUIRED} is set");
        eprintln!("skipped: {why}");
        None
    }

    async fn look(node: &TestClient) -> Result<Self, &'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let chromium = std::env::split_paths(&path).map(|folder| folder.join("chromium"));
        let chromium = { chromium }
            .find(|file| file.is_file())
            .ok_or("chromium is not installed (Debian and Ubuntu: `apt-get install chromium`)")?;
        if !ui().join("node_modules/playwright-core").is_dir() {
            return Err("`cargo xtask ui` has not installed the packages of the dashboard");
        }
        if node.get("/ui").await.status != 200 {
            return Err("the program has no dashboard; run `cargo xtask ui`, and build it again");
        }
        Ok(Self { chromium })
    }

    /// Runs a suite of `ui/e2e/pages.mjs` against `node`. Screenshots go to
    /// `target/dashboard/SUITE/`.
    pub async fn run(&self, suite: &str, node: &TestClient, settings: Value) {
        let screenshots = ui().with_file_name("target/dashboard").join(suite);
        let mut config = json!({
            "url": node.url("").as_str().trim_end_matches('/'),
            "chromium": self.chromium,
            "screenshots": screenshots,
            "suite": suite,
            "digit": ui().with_file_name("functions/classify-digits/samples/7.png"),
        });
        if let (Value::Object(config), Value::Object(settings)) = (&mut config, settings) {
            config.extend(settings);
        }
        let program = std::env::var_os("WEIR_NODE_JS").unwrap_or_else(|| OsString::from("node"));
        let mut script = Command::new(program);
        script.current_dir(ui()).arg("e2e/pages.mjs").env("WEIR_DASHBOARD", config.to_string());
        let output = script.kill_on_drop(true).output().await.expect("Node.js cannot be started");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "suite {suite} failed:\n{}", String::from_utf8_lossy(&said));
    }
}

fn ui() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ui")
}
