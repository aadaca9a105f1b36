//! A kit in a temporary folder, and runs of its script.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use weir_tests::Node;

/// Limits on the results of a step.
const FILES_MAX: usize = 8;
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Options of the doctor on a device whose times mean nothing.
const DOCTOR: &str = "--repeats 1 --warm-up-ms 0";

/// A kit for the digits' model, on a machine with one fake GPU.
pub(crate) struct Kit {
    folder: TempDir,
}

/// A step that has ended.
pub(crate) struct Step {
    pub(crate) is_ok: bool,
    pub(crate) stdout: String,
    out: PathBuf,
}

impl Kit {
    /// With the program as it ships.
    pub(crate) fn new() -> Self {
        Self::packed(Node::builder().binary())
    }

    /// With a program that runs the shell commands `script`, and then becomes `weir` with the
    /// arguments that these leave. `$stage` is the stage that it is asked for.
    pub(crate) fn with_script(script: &str) -> Self {
        // Replaced below: packed only since it is small.
        let kit = Self::packed(Path::new("/bin/true"));
        let weir = Node::builder().binary().display().to_string();
        let stage = r#"for word; do [ "$last" != --stage ] || stage=$word; last=$word; done"#;
        let text = format!("#!/bin/sh\n{stage}\n{script}\nexec {weir} \"$@\"\n");
        fs::write(kit.path("weir"), text).unwrap();
        run(Command::new("gzip").args(["-f", "-n"]).arg(kit.path("weir")));
        kit
    }

    fn packed(program: &Path) -> Self {
        let kit = Self { folder: tempfile::tempdir().unwrap() };
        let digits = repository().join("functions/classify-digits/model/digits.onnx");
        let mut xtask = Command::new(Node::builder().binary().with_file_name("xtask"));
        xtask.arg("gpu-kit").arg("--program").arg(program).arg("--model").arg(digits);
        run(xtask.arg("--out").arg(kit.path("")));
        kit
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(".gpu").join(name)
    }

    /// A step on a machine that has nothing of earlier steps but what the kit carries.
    pub(crate) fn step(&self, number: &str) -> Step {
        self.step_with(number, |_| {})
    }

    pub(crate) fn step_with(&self, number: &str, change: impl FnOnce(&mut Command)) -> Step {
        let (machine, out) = (self.folder.path().join("machine"), self.folder.path().join("out"));
        for folder in [&machine, &out] {
            // None before the first step.
            let _ = fs::remove_dir_all(folder);
            fs::create_dir(folder).unwrap();
        }
        let mut script = Command::new("bash");
        script.arg(self.path("go.sh")).arg(number).current_dir(&machine);
        script.env("OUT", &out).env("WEIR_GPU_SCRATCH", machine.join("scratch"));
        // Nothing of this machine's but the Python of the path.
        script.env("WEIR_GPU_ROOTS", "/nowhere").env_remove("WEIR_CUDA_LIBRARY_PATH");
        script.env("WEIR_CUDA_LIBRARY", weir_fake_cuda::library());
        script.env("WEIR_FAKE_CUDA", "devices=1,seed=3").env("WEIR_GPU_DOCTOR", DOCTOR);
        change(&mut script);
        let Output { status, stdout, stderr } = script.output().expect("bash");
        assert_eq!(String::from_utf8_lossy(&stderr), "");
        let results = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        fs::rename(&out, &results).unwrap();
        let stdout = String::from_utf8(stdout).unwrap();
        let step = Step { is_ok: status.success(), stdout, out: results };
        step.assert_can_be_brought_back();
        step
    }
}

impl Step {
    fn assert_can_be_brought_back(&self) {
        let files: Vec<_> = fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(files.len() <= FILES_MAX, "{files:?}");
        for file in files {
            let (name, meta) = (file.file_name().into_string().unwrap(), file.metadata().unwrap());
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            assert!(meta.is_file() && name.chars().all(is_plain), "{name}");
            assert!(meta.len() <= FILE_BYTES_MAX, "{name} has {} bytes", meta.len());
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// Names of the files, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        let names = fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}\n{}", self.stdout))
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Stages of which the doctor's file has checks, in order.
    pub(crate) fn stages(&self) -> Vec<String> {
        let json = self.json("gpu.json");
        let checks = json["checks"].as_array().expect("checks");
        let mut stages: Vec<_> =
            checks.iter().map(|check| check["stage"].as_str().expect("a stage").to_owned()).collect();
        stages.dedup();
        stages
    }

    /// What the summary says of a part.
    #[track_caller]
    pub(crate) fn part(&self, name: &str) -> String {
        let summary = self.text("summary.txt");
        let line = summary.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("nothing of {name}:\n{summary}")).to_owned()
    }
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top folder").to_owned()
}

/// A stub of PyTorch, to be found by `PYTHONPATH`.
pub(crate) fn torch_stub() -> PathBuf {
    repository().join("tests/tests/gpu_kit/stub")
}

/// Run a command that must succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    said
}
