//! `cargo xtask fuzz`.

use crate::process;
use crate::repo::Repo;
use crate::setup;
use anyhow::{Result, bail};
use std::process::Command;

/// Fuzz targets, which are `fuzz/fuzz_targets/NAME.rs`.
const TARGETS: [&str; 21] = [
    "request",
    "onnx",
    "kernel_graph",
    "workflow",
    "manifest",
    "link",
    "image",
    "headers",
    "upload",
    "grpc",
    "encoding",
    "trigger",
    "event",
    "registry",
    "invocation",
    "cluster",
    "cpu_worker",
    "gpu_worker",
    "component",
    "sources",
    "nats",
];

/// Run the fuzz targets: parsers of untrusted bytes, with generated input
///
/// Needs a nightly toolchain (`rustup toolchain install nightly --profile minimal`). A finding is
/// left in `fuzz/artifacts/`, and the corpus grows in `fuzz/corpus/`.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzArgs {
    /// Targets [default: all]
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

pub(crate) fn run(repo: &Repo, args: &FuzzArgs) -> Result<()> {
    if let Some(unknown) = args.targets.iter().find(|target| !TARGETS.contains(&target.as_str())) {
        bail!("there is no fuzz target {unknown}; there are {}", TARGETS.join(", "));
    }
    let toolchain = nightly()?;
    let program = setup::tools(repo)?.join("cargo-fuzz");
    let corpus = repo.root().join("fuzz/corpus");
    if !corpus.join("request").exists() {
        let archive = repo.root().join("fuzz/corpus.tar.gz");
        process::run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(repo.root().join("fuzz")))?;
    }
    for target in TARGETS.into_iter().filter(|target| is_chosen(args, target)) {
        eprintln!("fuzzing {target} for {} s", args.seconds);
        let found = corpus.join(target);
        std::fs::create_dir_all(&found)?;
        let mut fuzz = Command::new(&program);
        fuzz.current_dir(repo.root()).env("RUSTUP_TOOLCHAIN", &toolchain);
        fuzz.args(["run", target]).arg(&found).arg(repo.root().join("fuzz/seeds").join(target));
        fuzz.args(["--", "-rss_limit_mb=4096", "-timeout=30"]);
        fuzz.arg(format!("-max_total_time={}", args.seconds));
        let dictionary = repo.root().join("fuzz").join(format!("{target}.dict"));
        if dictionary.exists() {
            fuzz.arg(format!("-dict={}", dictionary.display()));
        }
        process::run(&mut fuzz)?;
    }
    Ok(())
}

fn is_chosen(args: &FuzzArgs, target: &str) -> bool {
    args.targets.is_empty() || args.targets.iter().any(|chosen| chosen == target)
}

/// The name of a nightly toolchain, which the instrumentation needs.
fn nightly() -> Result<String> {
    let installed = process::answer(Command::new("rustup").args(["toolchain", "list"]))?;
    let names = installed.lines().filter_map(|line| line.split_whitespace().next());
    let Some(nightly) = names.into_iter().find(|name| name.starts_with("nightly")) else {
        bail!(
            "there is no nightly toolchain; `rustup toolchain install nightly --profile minimal` installs one"
        );
    };
    Ok(nightly.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_listed_and_has_seeds() {
        let repo = Repo::find();
        let folder = repo.root().join("fuzz/fuzz_targets");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|file| Some(file.unwrap().path().file_stem()?.to_str()?.to_owned()))
            .filter(|name| !name.starts_with("check_"))
            .collect();
        found.sort_unstable();
        let mut listed = TARGETS.map(str::to_owned).to_vec();
        listed.sort_unstable();
        assert_eq!(found, listed);
        let manifest = std::fs::read_to_string(repo.root().join("fuzz/Cargo.toml")).unwrap();
        for target in TARGETS {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not in fuzz/Cargo.toml");
            let seeds = std::fs::read_dir(repo.root().join("fuzz/seeds").join(target)).unwrap().count();
            assert!(seeds > 0, "{target} has no seeds");
        }
    }
}
