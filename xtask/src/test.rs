//! `cargo xtask test`.

mod programs;

use crate::conformance;
use crate::functions::{self, BuildFunctionsArgs};
use crate::kernels;
use crate::models;
use crate::prerequisites;
use crate::process;
use crate::repo::Repo;
use crate::setup::{self, SetupArgs};
use crate::ui;
use anyhow::Result;
use programs::TestProgram;
use std::process::Command;

/// Functions with unit tests, which run on the host.
const FUNCTIONS_TESTED: [&str; 2] = ["classify-digits", "embed-text"];

/// Each Nth case of the conformance suites is run: some 50 cases.
const CONFORMANCE_EVERY: u32 = 40;

/// Install missing tools, build everything, run all tests
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Part of the names of the tests to run
    filter: Option<String>,
}

pub(crate) fn run(repo: &Repo, args: &TestArgs) -> Result<()> {
    prerequisites::note_disk(repo.root());
    eprintln!("setting up");
    setup::run(repo, &SetupArgs {})?;
    models::minilm(repo)?;
    models::light(repo)?;
    eprintln!("building the functions");
    functions::run(repo, &BuildFunctionsArgs::default())?;
    eprintln!("building the dashboard");
    let node = ui::build(repo)?;
    ui::test(repo, &node)?;
    eprintln!("checking the kernels");
    // A test compiles with NVRTC.
    kernels::install(repo)?;
    kernels::check(repo)?;
    eprintln!("building weir");
    // The end-to-end tests run the program. A common build shares the dependencies.
    process::run(repo.cargo(".").args(["build", "--workspace", "--bins", "--tests"]))?;
    eprintln!("testing the functions' own parts");
    let packages = FUNCTIONS_TESTED.iter().flat_map(|name| ["--package", name]);
    process::run(repo.cargo("functions").env_remove("CARGO_TARGET_DIR").arg("test").args(packages))?;
    python(repo)?;
    javascript(repo)?;
    go(repo)?;
    c(repo)?;
    kubernetes(repo)?;
    eprintln!("running a sample of the conformance suites");
    conformance::sample(repo, CONFORMANCE_EVERY)?;
    eprintln!("testing Weir");
    let filter = args.filter.as_deref();
    let mut programs = TestProgram::build(repo, filter)?;
    programs.push(TestProgram::documentation(repo, filter));
    // The browser runs in scripts of `ui/e2e/`.
    let mut variables = vec![("WEIR_NODE_JS", node.into())];
    // From here on, a test that needs one of these and does not find it fails.
    let required = [
        ("WEIR_REQUIRE_ETCD", setup::has_etcd()),
        ("WEIR_REQUIRE_NATS", setup::has_nats()),
        ("WEIR_REQUIRE_CHROMIUM", setup::has_chromium()),
        ("WEIR_REQUIRE_PROMTOOL", setup::has_promtool()),
    ];
    variables.extend(required.into_iter().filter(|(_, has)| *has).map(|(name, _)| (name, "1".into())));
    programs::run_all(&programs, &variables)
}

/// Tests of the Python code, without a node.
fn python(repo: &Repo) -> Result<()> {
    let program = setup::python(repo)?.join("python");
    let sdk = repo.root().join("guest-sdk/python");
    for folder in [sdk.join("tests"), repo.functions().join("classify-digits-py")] {
        let mut tests = Command::new(&program);
        tests.args(["-B", "-m", "unittest", "discover", "--quiet"]).current_dir(folder);
        process::run(tests.env("PYTHONPATH", sdk.join("src")))?;
    }
    Ok(())
}

/// Tests and type checks of the JavaScript and TypeScript code.
fn javascript(repo: &Repo) -> Result<()> {
    if setup::node_modules(&repo.functions())?.is_none() {
        return Ok(());
    }
    ["check", "test", "test-sdk"].iter().try_for_each(|script| {
        let mut npm = Command::new("npm");
        npm.args(["run", "--silent", "--workspaces", "--if-present", script]);
        process::run(npm.current_dir(repo.functions()))
    })
}

/// Tests of the Go code, without a node.
fn go(repo: &Repo) -> Result<()> {
    let program = setup::python(repo)?.join("go");
    for folder in [repo.root().join("guest-sdk/go"), repo.functions().join("classify-digits-go")] {
        process::run(Command::new(&program).args(["test", "./..."]).current_dir(folder))?;
    }
    Ok(())
}

/// Native tests of the C SDK with stubs for its imports.
fn c(repo: &Repo) -> Result<()> {
    let program = repo.root().join("target/weir-c-tests");
    let mut compiler = Command::new("cc");
    compiler.current_dir(repo.root().join("guest-sdk/c"));
    compiler.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-attributes",
        "-I.",
        "tests/main.c",
        "tests/node.c",
    ]);
    compiler
        .args([
            "src/call.c",
            "src/tensor.c",
            "src/model.c",
            "src/object.c",
            "src/image.c",
            "src/stage.c",
            "-o",
        ])
        .arg(&program);
    process::run(&mut compiler)?;
    process::run(&mut Command::new(program))
}

/// Validates the Kubernetes manifests and the Helm chart against the schemas of the oldest and the
/// newest supported version.
fn kubernetes(repo: &Repo) -> Result<()> {
    let folder = repo.root().join("deploy/kubernetes");
    let program = setup::environment(repo, "kubernetes", &folder.join("requirements.txt"))?;
    for version in ["1.34", "1.37"] {
        let mut validate = Command::new(program.join("kubernetes-validate"));
        validate.args(["--strict", "--quiet", "--kubernetes-version", version]);
        validate.args(
            ["etcd", "network", "nodes", "settings"].map(|name| folder.join(format!("base/{name}.yaml"))),
        );
        validate.args(["gpu/gpu.yaml", "autoscaling/hpa/hpa.yaml"].map(|name| folder.join(name)));
        process::run(&mut validate)?;
    }
    if std::env::consts::ARCH != "x86_64" {
        setup::report("skipped", "the tests of the Helm chart, whose library exists for x86-64 only");
        return Ok(());
    }
    let mut chart = Command::new(program.join("python"));
    chart.args(["-B", "-m", "unittest", "discover", "--quiet"]);
    process::run(chart.current_dir(repo.root().join("deploy/helm/tests")))
}
