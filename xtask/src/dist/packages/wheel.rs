//! The package for pip: a wheel with the program and the Python client, which depends on the wheel of
//! ONNX Runtime.

use super::{HOMEPAGE, Release, SUMMARY, libc};
use crate::dist::check::Package;
use crate::dist::third_party::{LICENCES, MATERIALS};
use crate::dist::{clear, copy};
use crate::process;
use crate::repo::Repo;
use crate::setup::{self, step};
use crate::weir::DemoNode;
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_provision::OnnxRuntimeRelease;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A package for pip.
pub(in crate::dist) struct Wheel(PathBuf);

impl Wheel {
    /// Makes the wheel of a release.
    pub(in crate::dist) fn pack(release: &Release) -> Result<Self> {
        let programs =
            setup::environment(release.repo, "packages", &release.sources().join("requirements.txt"))?;
        let folder = release.dist.join("wheel");
        clear(&folder)?;
        copy(&release.program(), &folder.join(format!("weir-{VERSION}.data/scripts/weir")))?;
        let client = PythonClient::read(release.repo)?;
        client.copy_to(&folder)?;
        let info = folder.join(format!("weir-{VERSION}.dist-info"));
        for name in ["LICENSE", LICENCES] {
            copy(&release.folder.join(name), &info.join("licenses").join(name))?;
        }
        copy(&release.folder.join(MATERIALS), &info.join("sboms").join(MATERIALS))?;
        let tag = tag(libc::minor_needed(&release.program())?);
        let write = |name: &str, text: String| {
            std::fs::write(info.join(name), text).with_context(|| format!("cannot write {name} of the wheel"))
        };
        write("WHEEL", format!("Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\nTag: {tag}\n"))?;
        write("METADATA", metadata(&client.project))?;
        write("entry_points.txt", entry_points(&client.project))?;
        let mut pack = Command::new(programs.join("python"));
        process::answer(pack.args(["-m", "wheel", "pack", "--dest-dir"]).arg(release.dist).arg(&folder))?;
        Ok(Self(release.dist.join(format!("weir-{VERSION}-{tag}.whl"))))
    }
}

impl Package for Wheel {
    fn name(&self) -> &'static str {
        "the package for pip"
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// Installs the wheel in an empty environment, where ONNX Runtime comes from its own wheel.
    fn start(&self, folder: &Path) -> Result<DemoNode> {
        let environment = folder.join("environment");
        step("pip install of the wheel in an empty environment");
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        process::run(pip.arg(&self.0))?;
        let mut command = Command::new(environment.join("bin/weir"));
        command.args(["up", "--listen", "127.0.0.1:0", "--no-deploy", "--data"]).arg(folder.join("data"));
        command.env_clear().env("HOME", folder).current_dir(folder);
        DemoNode::spawn(command)
    }

    /// Runs the model with the client of the environment.
    fn call(&self, folder: &Path, url: &str) -> Result<()> {
        let mut python = Command::new(folder.join("environment/bin/python"));
        python.args(["-I", "-c", CALL, url]).env_remove("WEIR_TOKEN").current_dir(folder);
        process::run(&mut python)
    }
}

/// Runs the example's model on the node of the first argument.
const CALL: &str = "\
import numpy, sys, weir_client
with weir_client.Client(sys.argv[1]) as weir:
    image = numpy.zeros((1, 1, 8, 8), numpy.float32)
    assert weir.infer('digits', {'image': image})['probabilities'].shape == (1, 10)
";

/// The Python client in the repository.
struct PythonClient {
    /// The folder of its modules.
    sources: PathBuf,
    project: PythonProject,
}

/// The table `project` of `pyproject.toml`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PythonProject {
    version: String,
    dependencies: Vec<String>,
    /// Names and targets by group.
    entry_points: BTreeMap<String, BTreeMap<String, String>>,
}

impl PythonClient {
    fn read(repo: &Repo) -> Result<Self> {
        #[derive(Deserialize)]
        struct Document {
            project: PythonProject,
        }
        let folder = repo.root().join("clients/python");
        let path = folder.join("pyproject.toml");
        let context = || format!("cannot read {}", path.display());
        let text = std::fs::read_to_string(&path).with_context(context)?;
        let Document { project } = toml::from_str(&text).with_context(context)?;
        if project.version != VERSION {
            bail!("{} has version {}, and the program has {VERSION}", path.display(), project.version);
        }
        Ok(Self { sources: folder.join("src"), project })
    }

    /// Copies the modules, without caches of the interpreter.
    fn copy_to(&self, folder: &Path) -> Result<()> {
        let mut folders = vec![self.sources.clone()];
        while let Some(from) = folders.pop() {
            let entries = std::fs::read_dir(&from).with_context(|| format!("cannot list {}", from.display()));
            for entry in entries? {
                let path = entry?.path();
                let extension = path.extension().and_then(|extension| extension.to_str());
                if path.is_dir() {
                    folders.push(path);
                } else if matches!(extension, Some("py" | "typed")) {
                    copy(&path, &folder.join(path.strip_prefix(&self.sources)?))?;
                }
            }
        }
        Ok(())
    }
}

/// The wheel's tag: any Python 3, on Linux with version 2.`minor` of the C library or a newer one.
fn tag(minor: u32) -> String {
    format!("py3-none-manylinux_2_{minor}_{}", std::env::consts::ARCH)
}

/// The wheel's metadata: <https://packaging.python.org/en/latest/specifications/core-metadata/>.
fn metadata(client: &PythonProject) -> String {
    let onnxruntime = OnnxRuntimeRelease::VERSION;
    let required: String =
        client.dependencies.iter().map(|package| format!("Requires-Dist: {package}\n")).collect();
    format!(
        "Metadata-Version: 2.4\nName: weir\nVersion: {VERSION}\nSummary: {SUMMARY}\n\
         License-Expression: Apache-2.0\nLicense-File: LICENSE\nLicense-File: {LICENCES}\n\
         Project-URL: Homepage, {HOMEPAGE}\nRequires-Python: >=3.10\n\
         Requires-Dist: onnxruntime=={onnxruntime}\n{required}\
         Description-Content-Type: text/markdown\n\n\
         The `weir` command, and its client for Python, `weir_client`. `weir up` starts a node, and\n\
         `weir new` creates a function.\n\
         See [the documentation]({HOMEPAGE}).\n"
    )
}

/// The wheel's entry points: <https://packaging.python.org/en/latest/specifications/entry-points/>.
fn entry_points(client: &PythonProject) -> String {
    let mut text = String::new();
    for (group, entries) in &client.entry_points {
        text.push_str(&format!("[{group}]\n"));
        entries.iter().for_each(|(name, target)| text.push_str(&format!("{name} = {target}\n")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_a_header_and_a_description() {
        let client = PythonClient::read(&Repo::find()).unwrap();
        let metadata = metadata(&client.project);
        let (header, description) = metadata.split_once("\n\n").unwrap();
        assert!(header.lines().all(|line| line.split_once(": ").is_some_and(|(_, value)| !value.is_empty())));
        assert!(header.contains("Requires-Dist: onnxruntime==1.") && description.contains("weir up"));
        assert!(header.contains("\nRequires-Dist: httpx2>=") && header.contains("\nRequires-Dist: numpy>="));
        assert_eq!(entry_points(&client.project), "[pytest11]\nweir = pytest_weir\n");
        assert!(tag(34).starts_with("py3-none-manylinux_2_34_"));
    }

    #[test]
    fn wheel_has_the_modules_and_the_types_of_the_client() {
        let folder = tempfile::tempdir().unwrap();
        PythonClient::read(&Repo::find()).unwrap().copy_to(folder.path()).unwrap();
        for file in ["weir_client/__init__.py", "weir_client/py.typed", "weir_client/_sync/client.py"] {
            assert!(folder.path().join(file).is_file(), "{file} is missing");
        }
        assert!(folder.path().join("pytest_weir.py").is_file());
    }
}
