//! Kernel graphs as users write them: plans of valid graphs, and errors of invalid graphs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use weir_kernel_graph::{
    ArgumentValue, Bundle, KernelGraph, KernelGraphError, PlanStep, PlannedLaunch, RunPlan, RunPlanError,
};
use weir_types::{ElementType, Shape};

const PTX: &str = ".version 7.0 .target sm_75 .address_size 64
    .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 m, .param .u32 n, .param .u32 k) { ret; }
    .entry step(.param .u64 next, .param .u64 x, .param .f32 by, .param .u64 count) .maxntid 256, 1, 1 { ret; }
    .entry odd(.param .align 8 .b8 all[24]) { ret; }";

fn graph(document: &Json) -> Result<KernelGraph, KernelGraphError> {
    let upload = json!({ "graph": document, "sources": { "all.ptx": PTX } });
    KernelGraph::new(Bundle::parse(upload.to_string().as_bytes())?)
}

fn plan(document: &Json, shapes: &[&[u32]]) -> Result<RunPlan, RunPlanError> {
    let shapes: Vec<_> = shapes.iter().map(|shape| Shape::new(shape).unwrap()).collect();
    graph(document).expect("the graph is sound").plan(&shapes, 1 << 30)
}

fn launches(plan: &RunPlan) -> Vec<&PlannedLaunch> {
    let mut launches = Vec::new();
    for step in &plan.steps {
        if let PlanStep::Launch(launch) = step {
            launches.push(launch);
        }
    }
    launches
}

fn product(name: &str, [a, b, c]: [&str; 3], [m, n, k]: [&str; 3]) -> Json {
    json!({
        "name": name, "kernel": "product", "grid": [format!("ceil_div({n}, 16)"), format!("ceil_div({m}, 16)")], "block": [16, 16],
        "arguments": [{"in": a}, {"in": b}, {"out": c}, {"u32": m}, {"u32": n}, {"u32": k}],
    })
}

/// Returns the graph of y = (a b) c, with the second launch listed first.
fn chain() -> Json {
    let matrix = |name: &str, shape: [&str; 2]| json!({"name": name, "datatype": "FP32", "shape": shape});
    json!({
        "inputs": [matrix("a", ["m", "k"]), matrix("b", ["k", "n"]), matrix("c", ["n", "p"])],
        "outputs": [matrix("y", ["m", "p"])],
        "temporaries": [matrix("t", ["m", "n"])],
        "launches": [product("second", ["t", "c", "y"], ["m", "p", "n"]), product("first", ["a", "b", "t"], ["m", "n", "k"])],
    })
}

fn steps(times: &Json) -> Json {
    json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ["n"]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": ["n"]}],
        "launches": [{
            "name": "sweep", "kernel": "step", "grid": ["ceil_div(n, 256)"], "block": [256],
            "arguments": [{"out": "y"}, {"in": "x"}, {"f32": 0.5}, {"u64": "n"}],
            "repeat": {"times": times, "feed": {"y": "x"}},
        }],
    })
}

fn changed(mut document: Json, pointer: &str, to: Json) -> Json {
    match document.pointer_mut(pointer) {
        Some(place) => *place = to,
        None => {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            document.pointer_mut(parent).unwrap()[key] = to;
        }
    }
    document
}

#[test]
fn launches_run_in_dependency_order() {
    let graph = graph(&chain()).unwrap();
    assert_eq!(graph.signature().outputs[0].to_string(), "y: FP32[?, ?]");
    let plan = plan(&chain(), &[&[100, 50], &[50, 30], &[30, 7]]).unwrap();
    let launches = launches(&plan);
    assert_eq!(launches.iter().map(|launch| &*launch.name).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!((launches[0].grid, launches[1].grid), ([2, 7, 1], [1, 7, 1]));
    assert_eq!(
        launches[0].arguments[3..],
        [ArgumentValue::U32(100), ArgumentValue::U32(30), ArgumentValue::U32(50)]
    );
    // The second launch reads the output of the first.
    assert_eq!(launches[0].arguments[2], launches[1].arguments[0]);
    assert_eq!(plan.outputs[0].shape.dimensions(), [100, 7]);
    assert_eq!(plan.outputs[0].datatype, ElementType::Fp32);
    // `a` and `b` are dead when `y` is written, so `y` can reuse their memory.
    assert!(
        plan.arena_bytes < 4 * (100 * 50 + 50 * 30 + 30 * 7 + 100 * 30 + 100 * 7),
        "{}",
        plan.arena_bytes
    );
}

#[test]
fn repeated_launches_read_previous_output() {
    for times in 1..6 {
        let plan = plan(&steps(&json!(times)), &[&[1000]]).unwrap();
        let launches = launches(&plan);
        assert_eq!(launches.len(), times);
        assert_eq!(launches[0].arguments[1], ArgumentValue::Arena(plan.inputs[0].offset));
        assert_eq!(launches[times - 1].arguments[0], ArgumentValue::Arena(plan.outputs[0].region.offset));
        for pair in launches.windows(2) {
            assert_eq!(pair[0].arguments[0], pair[1].arguments[1], "each reads what the one before wrote");
            assert_ne!(pair[1].arguments[0], pair[1].arguments[1], "and writes elsewhere");
        }
    }
    let by_size = plan(&steps(&json!("n / 100")), &[&[1000]]).unwrap();
    assert_eq!(by_size.steps.len(), 10);
}

#[test]
fn zeroed_buffers_are_filled_before_every_write() {
    let zeroed = changed(steps(&json!(3)), "/outputs/0/zero", json!(true));
    let plan = plan(&zeroed, &[&[10]]).unwrap();
    let written: Vec<_> = launches(&plan).iter().map(|launch| launch.arguments[0]).collect();
    let zeroed: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| {
            if let PlanStep::Zero(region) = step { Some(ArgumentValue::Arena(region.offset)) } else { None }
        })
        .collect();
    assert_eq!(zeroed, written);
}

#[test]
fn constants_are_concatenated_with_alignment() {
    let constants = json!([
        {"name": "b", "datatype": "FP32", "shape": [2, 2], "data": [1, 0.5, -2, 3]},
        {"name": "d", "datatype": "INT64", "shape": [1], "data": [-1]},
    ]);
    let mut document = changed(chain(), "/constants", constants);
    document["inputs"].as_array_mut().unwrap().remove(1);
    document["launches"].as_array_mut().unwrap().push(json!({
        "name": "third", "kernel": "step", "grid": [1], "block": [1],
        "arguments": [{"out": "z"}, {"in": "d"}, {"f32": 1}, {"u64": 1}],
    }));
    document["outputs"].as_array_mut().unwrap().push(json!({"name": "z", "datatype": "INT64", "shape": [1]}));
    let document = changed(document, "/inputs/0/shape", json!(["m", 2]));
    let document = changed(document, "/launches/1", product("first", ["a", "b", "t"], ["m", "n", "2"]));
    let graph = graph(&document).unwrap();
    let four: Vec<u8> = [1.0_f32, 0.5, -2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!((&graph.constants()[..16], &graph.constants()[256..]), (&four[..], &[255; 8][..]));
    let plan = graph.plan(&[Shape::new(&[3, 2]).unwrap(), Shape::new(&[2, 2]).unwrap()], 1 << 20).unwrap();
    assert_eq!(launches(&plan)[0].arguments[1], ArgumentValue::Constant(0));
}

#[test]
fn invalid_graphs_report_the_fault() {
    let cyclic = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [4, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [4, 4]}],
        "temporaries": [{"name": "t", "datatype": "FP32", "shape": [4, 4]}],
        "launches": [product("one", ["x", "t", "y"], ["4"; 3]), product("two", ["x", "y", "t"], ["4"; 3])],
    });
    let fixed = changed(
        changed(cyclic.clone(), "/launches/1/arguments/1", json!({"in": "x"})),
        "/description",
        json!(""),
    );
    assert_eq!(graph(&fixed).map(|_| ()), Ok(()));
    let with = |pointer: &str, to: Json| changed(chain(), pointer, to);
    let fixed_with = |pointer: &str, to: Json| changed(fixed.clone(), pointer, to);
    for (document, why) in [
        (cyclic, "in a cycle: one waits for two waits for one"),
        (fixed_with("/launches/0/arguments/0", json!({"in": "y"})), "in a cycle: one waits for one"),
        (with("/inputs", json!([])), "at least one of its inputs"),
        (with("/inputs/1/name", json!("a")), "two buffers called \"a\""),
        (with("/inputs/0/name", json!("")), "cannot be the name"),
        (with("/inputs/0/datatype", json!("BYTES")), "BYTES"),
        (with("/inputs/0/shape/0", json!("m + 1")), "no dimension of an input"),
        (with("/launches/0/name", json!("first")), "two launches called \"first\""),
        (
            with("/launches/0/kernel", json!("none")),
            "no kernel \"none\"; the sources have odd, product, step",
        ),
        (
            with("/launches/0/arguments/0", json!({"in": "none"})),
            "no buffer \"none\"; there are a, b, c, y, t",
        ),
        (
            with("/launches/0/arguments/0", json!({"u32": 1})),
            "argument 1 is a u32, and the parameter takes a buffer",
        ),
        (
            with("/launches/0/arguments/5", json!({"f32": 1})),
            "argument 6 is an f32, and the parameter takes an i32",
        ),
        (with("/launches/0/arguments", json!([])), "takes 6 arguments, not 0"),
        (with("/launches/0/arguments/2", json!({"out": "a"})), "\"a\", which is an input"),
        (with("/launches/0/arguments/2", json!({"out": "t"})), "written by both \"second\" and \"first\""),
        (with("/launches/0/arguments/0", json!({"in": "a"})), "no launch reads \"t\""),
        (with("/outputs/0", json!(null)), "cannot be read"),
        (with("/launches/0/grid", json!([])), "grid has 1 to 3 numbers, not 0"),
        (with("/launches/0/block", json!([16, 16, 16])), "threads in a block is 4096, and may be 1 to 1024"),
        (with("/launches/0/block/0", json!("m")), ""),
        (with("/launches/0/grid/0", json!("m / 0")), "\"m / 0\" divides by a number that is not above 0"),
        (with("/launches/0/arguments/5", json!({"i32": "m - 1 / 0"})), "divides by"),
        (with("/launches/0/arguments/5", json!({"i32": 3_000_000_000_u32})), "an argument is 3000000000"),
        (with("/outputs/0/shape/0", json!("0 - 1")), "a dimension is -1, and may be 0"),
        (steps(&json!(0)), "repeat.times is 0, and may be 1"),
        (with("/launches/0/grid/0", json!("q")), "dimension \"q\", which no input has"),
        (with("/launches/0/grid/0", json!("q +")), "ends too early"),
        (with("/launches/0/block/0", json!(2000)), "block is 2000, and may be 1 to 1024"),
        (with("/launches/0/shared_bytes", json!(1 << 20)), "shared_bytes is 1048576"),
        (with("/launches/0/blocks", json!([1])), "unknown field `blocks`"),
        (fixed_with("/outputs/0/shape", json!([4_000_000_000_u32, 4_000_000_000_u32])), "is too large"),
        (fixed_with("/outputs/0/shape", json!(["4294967295 * 2"])), "a dimension is 8589934590"),
        (fixed_with("/launches/0/grid/1", json!(70_000)), "grid is 70000, and may be 1 to 65535"),
        (
            fixed_with("/launches/0/block", json!([64, 64])),
            "threads in a block is 4096, and may be 1 to 1024",
        ),
        (changed(steps(&json!(1)), "/launches/0/repeat/feed", json!({"x": "y"})), "does not write \"x\""),
        (changed(steps(&json!(1)), "/launches/0/kernel", json!("odd")), "takes 1 arguments"),
    ] {
        match graph(&document) {
            Err(error) => assert!(!why.is_empty() && error.to_string().contains(why), "{why}: {error}"),
            // The validity depends on the inputs.
            Ok(_) => assert_eq!(why, "", "{document}"),
        }
    }
    let constant = json!([{"name": "k", "datatype": "INT8", "shape": [2], "data": [1, 300]}]);
    assert!(graph(&with("/constants", constant)).unwrap_err().to_string().contains("300 is no INT8"));
    let short = json!([{"name": "k", "datatype": "INT8", "shape": [4294967295_u32, 4294967295_u32, 16], "data": [1]}]);
    assert!(graph(&with("/constants", short)).unwrap_err().to_string().contains("1 elements are given"));
}

#[test]
fn integer_arguments_take_the_whole_range_of_their_type() {
    let with = |argument: &Json| changed(steps(&json!(1)), "/launches/0/arguments/3", argument.clone());
    for (argument, value) in [
        (json!({"u64": u64::MAX}), u64::MAX),
        (json!({"u64": "18446744073709551615"}), u64::MAX),
        (json!({"u64": "9223372036854775807 * 2 + min(n, 1)"}), u64::MAX),
        (json!({"i64": i64::MIN}), i64::MIN.cast_unsigned()),
        (json!({"i64": "0 - n"}), (-4_i64).cast_unsigned()),
    ] {
        let plan = plan(&with(&argument), &[&[4]]).unwrap();
        assert_eq!(launches(&plan)[0].arguments[3], ArgumentValue::U64(value), "{argument}");
    }
    for (argument, why) in [
        (json!({"i64": 1_u64 << 63}), "an argument is 9223372036854775808, and may be"),
        (json!({"u64": -1}), "an argument is -1, and may be 0 to 18446744073709551615"),
        (json!({"u64": "18446744073709551615 + 1"}), "beyond 64 bits"),
    ] {
        let error = graph(&with(&argument)).unwrap_err().to_string();
        assert!(error.contains(why), "{argument}: {error}");
    }
}

#[test]
fn mismatched_inputs_are_named_in_errors() {
    let fits: [&[u32]; 3] = [&[4, 5], &[5, 6], &[6, 7]];
    assert!(plan(&chain(), &fits).is_ok());
    for (shapes, why) in [
        (vec![fits[0]], "has 3 inputs, and 1 are given"),
        (vec![fits[0], fits[1], &[6]], "input \"c\" is FP32[n, p], and is given in shape [6]"),
        (vec![fits[0], &[9, 6], fits[2]], "dimension \"k\" is 5, and 9 in input \"b\""),
        (vec![&[0, 5], fits[1], fits[2]], "launch \"first\": grid is 0"),
        (vec![&[1_100_000, 5], fits[1], fits[2]], "grid is 68750, and may be 1 to 65535"),
        (
            vec![&[60_000, 5], &[5, 60_000], &[60_000, 1]],
            "may take 1073741824 (kernel_graphs.memory_bytes_max)",
        ),
    ] {
        let error = plan(&chain(), &shapes).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let error = plan(&steps(&json!("n")), &[&[5_000]]).unwrap_err().to_string();
    assert!(error.contains("repeat.times is 5000"), "{error}");
    let zeroed = changed(steps(&json!("n")), "/outputs/0/zero", json!(true));
    assert_eq!(plan(&zeroed, &[&[3_000]]), Err(RunPlanError::TooManySteps));
}

#[test]
fn malformed_uploads_are_rejected() {
    for (text, why) in [("", "cannot be read"), ("{}", "graph"), ("[1]", "cannot be read")] {
        let error = Bundle::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let with_sources = |sources: Json| {
        let upload = json!({ "graph": chain(), "sources": sources });
        Bundle::parse(upload.to_string().as_bytes()).and_then(KernelGraph::new).unwrap_err().to_string()
    };
    assert!(with_sources(json!({})).contains("at least one of its sources"));
    assert!(with_sources(json!({"all.cl": PTX})).contains("neither .cu nor .ptx"));
    assert!(with_sources(json!({"../all.ptx": PTX})).contains("cannot be the name of a source"));
    assert!(with_sources(json!({"a.ptx": PTX, "b.ptx": PTX})).contains("in both a.ptx and b.ptx"));
    assert!(with_sources(json!({"a.ptx": "no"})).contains("a.ptx: PTX begins with .version"));
}

/// Strategy for graphs of 1 to 19 products of 4 x 4 matrices: launch `i` reads two of the buffers
/// before it.
fn layers() -> impl Strategy<Value = Json> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..5_u32), 1..20)
        .prop_map(|picks| {
            let mut names = vec!["x".to_owned()];
            let mut launches = Vec::new();
            for (at, (a, b, times)) in picks.iter().enumerate() {
                let (a, b, c) = (
                    names[a.index(names.len())].clone(),
                    names[b.index(names.len())].clone(),
                    format!("t{at}"),
                );
                let mut launch = product(&format!("l{at}"), [&a, &b, &c], ["4"; 3]);
                launch["repeat"] = json!({"times": times, "feed": {&c: &a}});
                launches.push(launch);
                names.push(c);
            }
            // Buffers without a reader are the outputs.
            let is_read = |name: &str| {
                launches.iter().any(|launch| {
                    launch["arguments"].as_array().unwrap().iter().any(|argument| argument["in"] == name)
                })
            };
            let buffer = |name: &String| json!({"name": name, "datatype": "FP32", "shape": [4, 4]});
            let (read, given): (Vec<_>, Vec<_>) = names[1..].iter().partition(|name| is_read(name));
            launches.reverse();
            json!({
                "inputs": [buffer(&names[0])],
                "outputs": given.into_iter().map(buffer).collect::<Vec<_>>(),
                "temporaries": read.into_iter().map(buffer).collect::<Vec<_>>(),
                "launches": launches,
            })
        })
}

proptest! {
    /// Simulates the plan on memory that records the last writer: every launch must read the
    /// expected version.
    #[test]
    fn buffers_are_not_overwritten_before_last_read(document in layers()) {
        let plan = plan(&document, &[&[4, 4]]).unwrap();
        let mut memory = vec![String::new(); usize::try_from(plan.arena_bytes).unwrap() / 64 + 1];
        let cells = |place: ArgumentValue| match place {
            ArgumentValue::Arena(offset) => usize::try_from(offset / 64).unwrap()..usize::try_from(offset / 64).unwrap() + 1,
            _ => unreachable!(),
        };
        let mut turns = std::collections::HashMap::<String, u32>::new();
        memory[cells(ArgumentValue::Arena(plan.inputs[0].offset))].fill("x".to_owned());
        let launch = |name: &str| document["launches"].as_array().unwrap().iter().find(|launch| launch["name"] == name).unwrap().clone();
        for planned in launches(&plan) {
            let written = launch(&planned.name);
            let turn = turns.entry(planned.name.clone()).or_default();
            let a = &written["arguments"][0]["in"];
            let b = &written["arguments"][1]["in"];
            let c = &written["arguments"][2]["out"];
            let last = |name: &Json| {
                let name = name.as_str().unwrap();
                let times = if name == "x" { 1 } else { launch(&name.replace('t', "l"))["repeat"]["times"].as_u64().unwrap() };
                if name == "x" { name.to_owned() } else { format!("{name} {}", times - 1) }
            };
            let expected_a = if *turn == 0 { last(a) } else { format!("{} {}", c.as_str().unwrap(), *turn - 1) };
            prop_assert_eq!(&memory[cells(planned.arguments[0]).start], &expected_a);
            // If both operands are the same buffer, both are fed.
            if a != b {
                prop_assert_eq!(&memory[cells(planned.arguments[1]).start], &last(b));
            }
            memory[cells(planned.arguments[2])].fill(format!("{} {turn}", c.as_str().unwrap()));
            *turn += 1;
        }
        for (output, region) in document["outputs"].as_array().unwrap().iter().zip(&plan.outputs) {
            let times = launch(&output["name"].as_str().unwrap().replace('t', "l"))["repeat"]["times"].as_u64().unwrap();
            let expected = format!("{} {}", output["name"].as_str().unwrap(), times - 1);
            prop_assert_eq!(&memory[cells(ArgumentValue::Arena(region.region.offset)).start], &expected);
        }
    }
}
