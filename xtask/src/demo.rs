//! `cargo xtask demo`.

use crate::process;
use crate::progress::Progress;
use crate::repo::Repo;
use crate::setup::{self, step};
use crate::{models, prerequisites, weir};
use anyhow::{Context as _, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use weir_provision::Toolchain;

/// The functions that are called, by their folders' names.
const FUNCTIONS: [&str; 2] = ["classify-digits", "embed-text"];

/// Classify a digit and compare two sentences, starting from nothing
///
/// Installs what is missing, builds Weir and two functions, starts a node in a temporary folder, pushes two models, deploys the functions, and
/// calls them, all with plain curl. Then the node stops. The first time takes about seven minutes on two cores, most of it for compiling;
/// the program is built for the demo alone, without GPUs and optimised little.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Leave the node running until Ctrl-C
    #[arg(long)]
    stay: bool,
}

pub(crate) fn run(repo: &Repo, args: &DemoArgs) -> Result<()> {
    let mut progress = Progress::new(5);
    progress.step("checking this machine");
    prerequisites::check()?;
    let toolchain = setup::toolchain(repo)?;

    progress.step("compiling Weir and two functions, and downloading ONNX Runtime and a model meanwhile");
    let beside = || {
        setup::onnxruntime(repo)?;
        let minilm = models::minilm(repo)?;
        FUNCTIONS.iter().try_for_each(|name| compile(repo, &toolchain, name))?;
        Ok(minilm)
    };
    let (weir, minilm) = at_once(|| weir::build_for_demo(repo), beside)?;

    progress.step("making components of the functions");
    let digits = build_function(repo, &weir, "classify-digits", "classify_digits.wasm")?;
    let embed = build_function(repo, &weir, "embed-text", "embed_text.snapshot.wasm")?;

    progress.step("starting a node, and calling it");
    let node = weir::Node::start(repo, &weir)?;
    let url = node.url();
    let functions = repo.functions();
    let upload = |file: &Path, to: &str| {
        curl(repo, &["-o", "/dev/null", "-T", &path(repo, file), &format!("{url}{to}")]).map(drop)
    };
    say("push the models");
    upload(&functions.join("classify-digits/model/digits.onnx"), "/v1/models/digits/versions/1")?;
    upload(&minilm, "/v1/models/minilm/versions/1")?;
    say("deploy the functions");
    upload(&digits, "/v1/functions/classify-digits?models=digits")?;
    upload(&embed, "/v1/functions/embed-text?models=minilm")?;

    say("classify a digit (it is a 7)");
    let sample = format!("@{}", path(repo, &functions.join("classify-digits/samples/7.png")));
    let call = format!("{url}/fn/classify-digits/");
    let answer = curl(repo, &["-H", "content-type: image/png", "--data-binary", &sample, &call])?;
    expect(&answer, r#""digit":7"#)?;

    say("compare sentences: close in meaning, then not");
    let call = format!("{url}/fn/embed-text/similarity");
    let compare = |one: &str, other: &str| -> Result<f64> {
        let body = format!(r#"{{"sentences": ["{one}", "{other}"]}}"#);
        cosine(&curl(repo, &["-d", &body, &call])?)
    };
    let close = compare("A cat sits on the mat.", "A kitten is resting on a rug.")?;
    let far = compare("A cat sits on the mat.", "The stock market fell today.")?;
    if close <= far {
        bail!(
            "the sentences that mean the same came out at {close}, the others at {far}: something is wrong with the model"
        );
    }
    progress.step(&format!("done: every call was answered after {}", progress.elapsed()));
    if args.stay {
        eprintln!("\nthe node stays at {url}; Ctrl-C stops it");
        return node.wait();
    }
    node.stop()?;
    eprintln!("\nnext: `cargo install --path cli` for the command, or `cargo xtask test`");
    Ok(())
}

/// Do both at the same time.
fn at_once<A, B: Send>(
    one: impl FnOnce() -> Result<A>,
    other: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let one = one();
        let other = other.join().map_err(|_| anyhow!("a step that ran beside the compiler panicked"))?;
        Ok((one?, other?))
    })
}

/// Compile a function with the command of its `weir.toml`, so that `weir build` finds it compiled.
fn compile(repo: &Repo, toolchain: &Toolchain, name: &str) -> Result<()> {
    let mut cargo = repo.cargo(repo.functions().join(name));
    cargo.args(["build", "--release", "--target", weir_provision::TARGET]).env_remove("CARGO_TARGET_DIR");
    step(&format!("{} in functions/{name}", process::line(&cargo)));
    // At full priority the functions would be done early, and one core idle while the other compiles the last crates of Weir.
    process::answer(&mut process::in_background(toolchain.configure(&mut cargo))).map(drop)
}

/// Build a function as its author would, with `weir build` in its folder.
pub(crate) fn build_function(repo: &Repo, weir: &Path, name: &str, component: &str) -> Result<PathBuf> {
    step(&format!("weir build in functions/{name}"));
    process::answer(Command::new(weir).arg("build").current_dir(repo.functions().join(name)))?;
    Ok(repo.functions().join("target/wasm32-wasip2/release").join(component))
}

fn say(what: &str) {
    println!("\n# {what}");
}

/// Run curl, showing the command and its answer. A status of 400 or more is an error.
fn curl(repo: &Repo, args: &[&str]) -> Result<String> {
    let mut command = Command::new("curl");
    command.args(["-sS", "-f"]).args(args).current_dir(repo.root());
    println!("$ {}", process::line(&command));
    let answer = process::answer(&mut command)?;
    if !answer.is_empty() {
        println!("{answer}");
    }
    Ok(answer)
}

fn path(repo: &Repo, path: &Path) -> String {
    repo.show(path).to_string()
}

fn expect(answer: &str, part: &str) -> Result<()> {
    let squeezed: String = answer.chars().filter(|c| !c.is_whitespace()).collect();
    if squeezed.contains(part) { Ok(()) } else { bail!("the answer should have {part} in it") }
}

/// The number behind `"cosine":`.
fn cosine(answer: &str) -> Result<f64> {
    let rest = answer.split_once(r#""cosine":"#).context("the answer has no cosine in it")?.1;
    let number: String =
        rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || "-.e".contains(*c)).collect();
    number.parse().with_context(|| format!("{number:?} is not a number"))
}
