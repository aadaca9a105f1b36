//! GPU kit in a temporary folder, and runs of its script.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use weir_tests::TestNode;

/// Limits on the result files of a step.
const FILES_MAX: usize = 8;
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Doctor options for a device whose times mean nothing.
const DOCTOR: &str = "--repeats 1 --warm-up-ms 0";

/// GPU kit with the digits model, for a machine with one fake GPU.
pub(crate) struct Kit {
    folder: TempDir,
}

/// Finished step.
pub(crate) struct KitStep {
    pub(crate) is_ok: bool,
    pub(crate) stdout: String,
    out: PathBuf,
}

impl Kit {
    /// Creates a kit with the real program.
    pub(crate) fn new() -> Self {
        Self::packed(TestNode::builder().binary())
    }

    /// Creates a kit whose program runs the shell commands `script`, then executes `weir` with the
    /// remaining arguments. `$stage` is the stage argument.
    pub(crate) fn with_script(script: &str) -> Self {
        // A small placeholder, replaced below.
        let kit = Self::packed(Path::new("/bin/true"));
        let weir = TestNode::builder().binary().display().to_string();
        let stage = r#"for word; do [ "$last" != --stage ] || stage=$word; last=$word; done"#;
        let text = format!("#!/bin/sh\n{stage}\n{script}\nexec {weir} \"$@\"\n");
        fs::write(kit.path("weir"), text).unwrap();
        run(Command::new("gzip").args(["-f", "-n"]).arg(kit.path("weir")));
        kit
    }

    fn packed(program: &Path) -> Self {
        let kit = Self { folder: tempfile::tempdir().unwrap() };
        let digits = repository().join("functions/classify-digits/model/digits.onnx");
        let mut xtask = Command::new(TestNode::builder().binary().with_file_name("xtask"));
        xtask.arg("gpu-kit").arg("--program").arg(program).arg("--model").arg(digits);
        run(xtask.arg("--out").arg(kit.path("")));
        kit
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(".gpu").join(name)
    }

    /// Runs a step on a machine without results of earlier steps, except those in the kit.
    pub(crate) fn step(&self, number: &str) -> KitStep {
        self.step_with(number, |_| {})
    }

    pub(crate) fn step_with(&self, number: &str, change: impl FnOnce(&mut Command)) -> KitStep {
        let machine = self.folder.path().join("machine");
        let out = self.folder.path().join("out");
        for folder in [&machine, &out] {
            // Missing before the first step.
            let _ = fs::remove_dir_all(folder);
            fs::create_dir(folder).unwrap();
        }
        let mut script = Command::new("bash");
        script.arg(self.path("go.sh")).arg(number).current_dir(&machine);
        script.env("OUT", &out).env("WEIR_GPU_SCRATCH", machine.join("scratch"));
        // Hide this machine's CUDA installation; only the Python of the PATH remains.
        script.env("WEIR_GPU_ROOTS", "/nowhere").env_remove("WEIR_CUDA_LIBRARY_PATH");
        script.env("WEIR_CUDA_LIBRARY", weir_fake_cuda::library());
        script.env("WEIR_FAKE_CUDA", "devices=1,seed=3").env("WEIR_GPU_DOCTOR", DOCTOR);
        change(&mut script);
        let Output { status, stdout, stderr } = script.output().expect("bash");
        assert_eq!(String::from_utf8_lossy(&stderr), "");
        let results = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        fs::rename(&out, &results).unwrap();
        let stdout = String::from_utf8(stdout).unwrap();
        let step = KitStep { is_ok: status.success(), stdout, out: results };
        step.assert_can_be_brought_back();
        step
    }
}

impl KitStep {
    fn assert_can_be_brought_back(&self) {
        let files: Vec<_> = fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(files.len() <= FILES_MAX, "{files:?}");
        for file in files {
            let name = file.file_name().into_string().unwrap();
            let meta = file.metadata().unwrap();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            assert!(meta.is_file() && name.chars().all(is_plain), "{name}");
            assert!(meta.len() <= FILE_BYTES_MAX, "{name} has {} bytes", meta.len());
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// Names of the result files, sorted.
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

    /// Stages with checks in the doctor's file, in order.
    pub(crate) fn stages(&self) -> Vec<String> {
        let json = self.json("gpu.json");
        let checks = json["checks"].as_array().expect("checks");
        let mut stages: Vec<_> =
            checks.iter().map(|check| check["stage"].as_str().expect("a stage").to_owned()).collect();
        stages.dedup();
        stages
    }

    /// Verdict of the summary on a part.
    #[track_caller]
    pub(crate) fn part(&self, name: &str) -> String {
        let summary = self.text("summary.txt");
        let line = summary.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("the summary has no line about {name}:\n{summary}")).to_owned()
    }
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top folder").to_owned()
}

/// Folder of the PyTorch stub, for `PYTHONPATH`.
pub(crate) fn torch_stub() -> PathBuf {
    repository().join("tests/tests/gpu_kit/stub")
}

/// Runs a command that must succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    said
}
