//! Invalid workflows: each mistake has its own error, which names the step and the edge.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use weir_types::{ContentHash, ElementType, ModelRef, Port, Signature, Version};
use weir_workflow::{Document, Pinned, Plan, PlanError, TargetKind};

fn port(name: &str, datatype: ElementType, shape: &[Option<u32>]) -> Port {
    Port { name: name.into(), datatype, shape: shape.to_vec() }
}

/// Targets. `digits`: FP32[?, 64] to FP32[?, 10]; `ten`: FP32[?, 10] to FP32[?, 2]; `ints`:
/// INT64[4] to INT64[4]; `pair`: a model with two outputs; `f`: a tensor function.
fn catalog(_: &str, wanted: &ModelRef) -> Result<Option<Pinned>, String> {
    let fp32 = |name: &str, columns| port(name, ElementType::Fp32, &[None, Some(columns)]);
    let ints = |name: &str| port(name, ElementType::Int64, &[Some(4)]);
    let signature = match wanted.name.as_str() {
        "digits" => Some(Signature { inputs: vec![fp32("image", 64)], outputs: vec![fp32("p", 10)] }),
        "ten" => Some(Signature { inputs: vec![fp32("p", 10)], outputs: vec![fp32("q", 2)] }),
        "ints" => Some(Signature { inputs: vec![ints("x")], outputs: vec![ints("y")] }),
        "pair" => Some(Signature { inputs: vec![fp32("p", 10)], outputs: vec![fp32("a", 10), fp32("b", 3)] }),
        "strings" => Some(Signature {
            inputs: vec![fp32("p", 10)],
            outputs: vec![port("words", ElementType::Bytes, &[None]), port("one", ElementType::Fp32, &[])],
        }),
        "deep" => Some(Signature { inputs: vec![fp32("x", 64)], outputs: vec![fp32("y", 64)] }),
        "f" => None,
        other => return Err(format!("there is no model or tensor function {other}")),
    };
    let kind = match wanted.name.as_str() {
        "f" => TargetKind::Function,
        "deep" => TargetKind::Workflow,
        _ => TargetKind::Model,
    };
    Ok(Some(Pinned {
        kind,
        name: wanted.name.clone(),
        version: Version(1),
        digest: ContentHash::from_content(wanted.name.as_str().as_bytes()),
        signature,
        depth: 4,
        runs: 1,
    }))
}

fn plan(text: &str) -> Result<Plan, PlanError> {
    Plan::new(&Document::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}")), &catalog)
}

/// A workflow of digits with these steps.
fn digits(steps: &str, output: &str) -> String {
    format!("inputs = {{ image = \"FP32[n, 64]\" }}\n{steps}\n[outputs]\nout = \"{output}\"\n")
}

const A: &str = "[steps.a]\nrun = \"digits\"\ninputs = { image = \"image\" }\n";

#[test]
fn sequence_signature_follows_from_its_first_and_last_step() {
    let plan =
        plan(&digits(&format!("{A}[steps.b]\nrun = \"ten\"\ninputs = {{ p = \"a\" }}"), "b.q")).unwrap();
    let signature = plan.signature();
    assert_eq!(signature.inputs, [port("image", ElementType::Fp32, &[None, Some(64)])]);
    assert_eq!(signature.outputs, [port("out", ElementType::Fp32, &[None, Some(2)])]);
    let names: Vec<_> = plan.steps().iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(plan.reads(&plan.steps()[1]), ["a"]);
    assert_eq!((plan.depth(), plan.runs()), (1, 2));
}

#[test]
fn sizes_propagate_from_readers_to_inputs() {
    // `f` declares no number of columns; `digits` and the type of the input determine it.
    let text = "
        inputs = { raw = \"UINT8[?, k]\" }
        [steps.f]
        run = \"f\"
        inputs = { raw = \"raw\" }
        outputs = { image = \"FP32[2, k]\" }
        [steps.a]
        run = \"digits\"
        inputs = { image = \"f\" }
        [outputs]
        p = \"a\"
    ";
    let plan = plan(text).unwrap();
    assert_eq!(plan.signature().inputs, [port("raw", ElementType::Uint8, &[None, Some(64)])]);
}

#[test]
fn each_mistake_has_its_own_error() {
    let both = |more: &str| digits(&format!("{A}{more}"), "b");
    let cases = [
        // The document alone.
        ("inputs = {}\nsteps = {}\noutputs = {}".to_owned(), "at least one step"),
        ("inputs = {}\nsteps = { a = { run = \"f\", inputs = { x = \"y\" } } }\noutputs = {}".into(), "at least one of its inputs"),
        (digits("[steps.\"a.b\"]\nrun = \"digits\"\ninputs = { image = \"image\" }", "x"), "cannot be the name of a step: it holds letters"),
        (digits("[steps.image]\nrun = \"digits\"\ninputs = { image = \"image\" }", "x"), "both a step and an input"),
        (digits("[steps.a]\ninputs = { image = \"image\" }", "a"), "step a: exactly one of run, combine and split"),
        (digits("[steps.a]\nrun = \"f\"\nof = [\"image\"]\nsplit = \"image\"", "a"), "exactly one"),
        (digits("[steps.a]\nrun = \"digits\"\ninputs = { image = \"image\" }\nparts = 2", "a"), "step a: parts goes with split"),
        (digits("[steps.a]\nsplit = \"image\"\nparts = 2\nhedge = true", "a.0"), "step a: hedge goes with run"),
        (digits("[steps.a]\nrun = \"digits\"", "a"), "step a: it reads nothing"),
        (digits("[steps.a]\nsplit = \"image\"\nparts = 1", "a.0"), "step a: parts is a number from 2 to 16"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"a\" }\nwhen = \"max(a) < 1\"\nunless = \"max(a) < 1\""), "step b: it has both"),
        // Names.
        (both("[steps.b]\nrun = \"none\"\ninputs = { p = \"a\" }"), "step b: there is no model or tensor function none"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"c.p\" }"), "step b, input p: there is no c.p; there are image, a, b"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"a.q\" }"), "step b, input p: there is no a.q; there are a.p"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"a\", q = \"a\" }"), "step b: ten has no input \"q\"; it has p: FP32[?, 10]"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { q = \"a\" }"), "ten has no input \"q\""),
        (both("[steps.b]\nrun = \"ints\"\ninputs = { }\nwhen = \"max(a) < 1\""), "reads nothing"),
        (digits("[steps.b]\nrun = \"add\"\ninputs = { x = \"image\" }", "b"), "no model or tensor function add"),
        (both("[steps.b]\nrun = \"f\"\ninputs = { p = \"a\" }"), "step b: a tensor function's outputs have to be declared"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"a\" }\noutputs = { r = \"FP32[1]\" }"), "step b: ten has no output \"r\""),
        (both("[steps.b]\ncombine = \"mean\"\nof = [\"a\", \"a.p\"]"), "step b, of[1]: a.p is listed before"),
        (digits(&format!("{A}[steps.b]\nrun = \"pair\"\ninputs = {{ p = \"a\" }}"), "b"), "output out: step b has several outputs, say which: b.a, b.b"),
        (digits(A, "z"), "output out: there is no z"),
        // Cycles.
        (digits("[steps.a]\nrun = \"ten\"\ninputs = { p = \"b\" }\n[steps.b]\nrun = \"f\"\ninputs = { i = \"image\", q = \"a\" }\noutputs = { p = \"FP32[1, 10]\" }", "b"), "wait for each other: a reads b reads a"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"a\" }\nwhen = \"max(b) < 1\""), "wait for each other: b reads b"),
        // Types along edges.
        (both("[steps.b]\nrun = \"digits\"\ninputs = { image = \"a\" }"), "step b, input image: expected FP32[?, 64], but a is FP32[?, 10]"),
        (both("[steps.b]\nrun = \"ints\"\ninputs = { x = \"a\" }"), "step b, input x: expected INT64[4], but a is FP32[?, 10]"),
        (both("[steps.b]\ncombine = \"mean\"\nof = [\"a\", \"image\"]"), "step b, of[1]: expected FP32[?, 10], but image is FP32[n, 64]"),
        (both("[steps.b]\nrun = \"ten\"\ninputs = { p = \"a\" }\noutputs = { q = \"FP32[?, 3]\" }"), "step b: output q is declared as FP32[?, 3], and is FP32[?, 2]"),
        (both("[steps.b]\nrun = \"strings\"\ninputs = { p = \"a\" }\n[steps.c]\ncombine = \"concat\"\nof = [\"b.one\"]").replace("\"b\"", "\"c\""), "step c: concat takes tensors with dimensions"),
        (both("[steps.b]\nrun = \"strings\"\ninputs = { p = \"a\" }\n[steps.c]\ncombine = \"vote\"\nof = [\"b.words\"]").replace("\"b\"", "\"c\""), "step c: vote computes with FP32 and FP64, not with BYTES"),
        (both("[steps.b]\nrun = \"strings\"\ninputs = { p = \"a\" }\n[steps.c]\nsplit = \"b.one\"\nparts = 2").replace("\"b\"", "\"c.0\""), "step c: b.one is a scalar"),
        // Conditions.
        (both("[steps.s]\nrun = \"strings\"\ninputs = { p = \"a\" }\n[steps.b]\nrun = \"ten\"\ninputs = { p = \"a\" }\nwhen = \"s.words == 1\""), "step b: s.words == 1 cannot be evaluated: BYTES elements are no numbers"),
        ("inputs = { i = \"INT64[4]\" }\n[steps.a]\nrun = \"ints\"\ninputs = { x = \"i\" }\nwhen = \"i > 0\"\n[outputs]\no = \"a\"".into(), "it has 4 elements, of which max()"),
        ("inputs = { i = \"INT64[70000]\" }\n[steps.a]\ncombine = \"first\"\nof = [\"i\"]\nwhen = \"max(i) > 0\"\n[outputs]\no = \"a\"".into(), "a condition looks at 65536"),
        (digits(&format!("{A}[steps.b]\nrun = \"ten\"\ninputs = {{ p = \"a\" }}\nwhen = \"max(a) < 0.5\""), "b"), "output out: b.q is absent when max(a) < 0.5 does not hold"),
        (both("[steps.s]\nsplit = \"a\"\nparts = 3\n[steps.b]\nrun = \"ten\"\ninputs = { p = \"s.2\" }"), "absent when s has 1 part"),
        (both("[steps.c]\nrun = \"ten\"\ninputs = { p = \"a\" }\nunless = \"max(a) < 0.5\"\n[steps.d]\ncombine = \"first\"\nof = [\"c\"]\nwhen = \"max(a) < 0.5\"\n[steps.b]\ncombine = \"first\"\nof = [\"d\", \"a\"]").replace("ten", "pair").replace("[\"c\"]", "[\"c.a\"]"), "step d never runs"),
        // Unused items.
        ("inputs = { image = \"FP32[n, 64]\", more = \"BOOL[]\" }\n".to_owned() + A + "[outputs]\no = \"a\"", "input more is read by no step"),
        (digits(&format!("{A}[steps.b]\nrun = \"ten\"\ninputs = {{ p = \"a\" }}"), "a"), "step b is of no use"),
        // Bounds.
        (digits("[steps.a]\nrun = \"deep\"\ninputs = { x = \"image\" }", "a"), "step a: workflows go at most 4 deep"),
    ];
    for (text, why) in cases {
        let error = plan(&text).map(drop).unwrap_err().to_string();
        assert!(error.contains(why), "{text}\nis refused with: {error}\nand not: {why}");
    }
}

#[test]
fn input_without_a_source_is_named() {
    let two = |_: &str, _: &ModelRef| {
        let mut pinned = catalog("", &"ten".parse().unwrap()).unwrap().unwrap();
        let signature = pinned.signature.as_mut().unwrap();
        signature.inputs.push(port("q", ElementType::Fp32, &[None]));
        Ok(Some(pinned))
    };
    let text = "inputs = { p = \"FP32[1, 10]\" }\n[steps.a]\nrun = \"two\"\ninputs = { p = \"p\" }\n[outputs]\no = \"a\"";
    let error = Plan::new(&Document::parse(text.as_bytes()).unwrap(), &two).unwrap_err();
    assert_eq!(error.to_string(), "step a: input q: FP32[?] of two is fed by nothing");
}

#[test]
fn plan_limits_are_enforced() {
    let steps = |count: usize| {
        let steps: String = (0..count)
            .map(|i| format!("[steps.s{i}]\nrun = \"digits\"\ninputs = {{ image = \"image\" }}\n"))
            .collect();
        let outputs: String = (0..count.min(64)).map(|i| format!("o{i} = \"s{i}\"\n")).collect();
        format!("inputs = {{ image = \"FP32[n, 64]\" }}\n{steps}[outputs]\n{outputs}")
    };
    plan(&steps(64)).unwrap();
    assert_eq!(plan(&steps(65)).unwrap_err(), PlanError::TooManySteps(65));
    let inputs: String = (0..65).map(|i| format!("i{i} = \"FP32[1]\"\n")).collect();
    let text = format!("[inputs]\n{inputs}{A}[outputs]\no = \"a\"");
    assert!(matches!(plan(&text), Err(PlanError::TooManyPorts { len: 65, .. })));
    // Eleven conditions alone make too many cases.
    let guarded: String = (0..11)
        .map(|i| format!("[steps.s{i}]\nrun = \"digits\"\ninputs = {{ image = \"image\" }}\nwhen = \"max(image) < {i}\"\n"))
        .collect();
    let all: Vec<_> = (0..11).map(|i| format!("\"s{i}\"")).collect();
    let text =
        digits(&format!("{guarded}{A}[steps.b]\ncombine = \"first\"\nof = [{}, \"a\"]", all.join(", ")), "b");
    assert_eq!(plan(&text).unwrap_err(), PlanError::TooManyCases);
    // The error does not repeat a name as long as the document.
    let long = "x".repeat(1_000);
    let error =
        plan(&digits(&format!("[steps.{long}]\nrun = \"digits\"\ninputs = {{ image = \"image\" }}"), "a"))
            .unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
}

#[test]
fn plan_without_targets_still_finds_structural_errors() {
    let nobody = |_: &str, _: &ModelRef| Ok(None);
    let offline = |text: &str| Plan::new(&Document::parse(text.as_bytes()).unwrap(), &nobody);
    let good = digits(
        &format!(
            "{A}[steps.b]\nrun = \"ten\"\ninputs = {{ p = \"a\" }}\n[steps.c]\ncombine = \"concat\"\nof = [\"b\", \"a.q\"]"
        ),
        "c",
    );
    offline(&good).unwrap();
    let cycle = digits(
        "[steps.a]\nrun = \"x\"\ninputs = { p = \"b.q\" }\n[steps.b]\nrun = \"x\"\ninputs = { p = \"a\", i = \"image\" }",
        "b",
    );
    assert!(matches!(offline(&cycle), Err(PlanError::Cycle(_))));
    let declared = digits(
        &format!(
            "{A}outputs = {{ p = \"FP32[n, 10]\" }}\n[steps.b]\ncombine = \"best\"\nof = [\"a.p\", \"image\"]"
        ),
        "b",
    );
    assert!(matches!(offline(&declared), Err(PlanError::DoesNotFit { .. })));
}

/// Steps that exclude each other are not added up, and unused steps do not count.
#[test]
fn run_estimate_is_the_longest_chain_of_the_slowest_case() {
    let step = |name: &str, of: &str, more: &str| {
        format!("[steps.{name}]\nrun = \"deep\"\ninputs = {{ x = \"{of}\" }}\n{more}\n")
    };
    let join = |name: &str, of: &[&str]| format!("[steps.{name}]\ncombine = \"first\"\nof = {of:?}\n");
    let times = |steps: &[String], output: &str| {
        let document = Document::parse(digits(&steps.concat(), output).as_bytes()).unwrap();
        let runs = |step: &str, wanted: &ModelRef| {
            catalog(step, wanted).map(|found| found.map(|found| Pinned { depth: 1, ..found }))
        };
        let plan = Plan::new(&document, &runs).unwrap();
        // A step takes the time in its name.
        let estimate = plan.estimate(|step| step.name.trim_start_matches('t').parse().unwrap_or(0));
        (estimate.critical_path_ns, estimate.work_ns)
    };
    assert_eq!(times(&[step("t5", "image", ""), step("t7", "t5", "")], "t7"), (12, 12));
    let ensemble = [step("t5", "image", ""), step("t7", "image", ""), join("j", &["t5", "t7"])];
    assert_eq!(times(&ensemble, "j"), (7, 12));
    let when = "when = \"max(t1) < 1\"";
    let unless = "unless = \"max(t1) < 1\"";
    let switch = [
        step("t1", "image", ""),
        step("t5", "image", when),
        step("t7", "image", unless),
        join("j", &["t5", "t7"]),
    ];
    assert_eq!(times(&switch, "j"), (8, 8), "its condition comes first, and one of both runs");
    // No case contains both t20 and t30.
    let steps = [
        step("t1", "image", ""),
        step("t20", "image", when),
        step("t4", "image", unless),
        join("j", &["t20", "t4"]),
        step("t30", "j", unless),
        join("k", &["t30", "j"]),
    ];
    assert_eq!(times(&steps, "k"), (35, 35));
    let estimate = weir_workflow::RunEstimate { critical_path_ns: 7, work_ns: 13 };
    assert_eq!([0, 1, 2, 3].map(|slots| estimate.with_slots_ns(slots)), [13, 13, 7, 7]);
}
