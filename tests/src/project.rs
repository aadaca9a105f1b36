//! Function projects in temporary folders, driven by `weir new`, `weir build` and `weir deploy`.

use crate::{NodeBuilder, TestNode};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Language of a function project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Rust.
    Rust,
    /// Python.
    Python,
    /// TypeScript.
    TypeScript,
    /// JavaScript.
    JavaScript,
    /// C.
    C,
    /// Go.
    Go,
}

impl Language {
    /// The language's name for `weir new --template`.
    #[must_use]
    pub fn template(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::TypeScript => "ts",
            Self::JavaScript => "js",
            Self::C => "c",
            Self::Go => "go",
        }
    }

    /// Whether the program that the language's compiler requires is installed. If not, prints a
    /// note, or panics if `WEIR_REQUIRE_LANGUAGES` is set.
    #[must_use]
    pub fn is_here(self) -> bool {
        let program = match self {
            Self::Rust => "rustc",
            Self::Python | Self::C | Self::Go => "python3",
            Self::TypeScript | Self::JavaScript => "npm",
        };
        let asked = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        let here = asked.is_ok_and(|status| status.success());
        assert!(
            here || std::env::var_os("WEIR_REQUIRE_LANGUAGES").is_none(),
            "{program} does not start, and WEIR_REQUIRE_LANGUAGES is set"
        );
        if !here {
            eprintln!("skipped: functions in {self:?} need {program}, which does not start");
        }
        here
    }
}

/// Project made by `weir new`. Its folder is removed on drop.
#[derive(Debug)]
pub struct TestProject {
    /// Keeps the folder.
    _top: TempDir,
    folder: PathBuf,
    binary: PathBuf,
}

impl TestProject {
    /// Creates a project with the `weir` binary of `node`; `kind` is `http` or `tensor`.
    pub async fn new(node: &NodeBuilder, language: Language, kind: &str, name: &str) -> Self {
        let top = tempfile::tempdir().expect("a temporary folder cannot be created");
        let project = Self { folder: top.path().to_owned(), _top: top, binary: node.binary().to_owned() };
        project.weir(&["new", name, "--template", language.template(), "--kind", kind]).await;
        Self { folder: project.folder.join(name), ..project }
    }

    /// The project's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs `weir` in the project's folder and returns standard output. Panics if the command
    /// fails.
    pub async fn weir(&self, arguments: &[&str]) -> String {
        self.run(self.command(arguments)).await
    }

    /// Runs `weir deploy` against `node`.
    pub async fn deploy(&self, node: &TestNode) -> String {
        self.run(self.against(node, &["deploy"])).await
    }

    /// A `weir` command in the project's folder, against `node`.
    #[must_use]
    pub fn against(&self, node: &TestNode, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("WEIR_URL", format!("http://{}", node.address()));
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).current_dir(&self.folder);
        command
    }

    async fn run(&self, mut command: Command) -> String {
        let what = format!("{command:?}");
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("starting a process does not panic");
        let output = output.expect("weir starts");
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
