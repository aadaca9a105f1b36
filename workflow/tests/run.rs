//! Runs random workflows with steps finishing in random orders, and compares them with the
//! definition: a step runs if its condition holds and its inputs are present.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::rc::{Rc, Weak};
use weir_types::{ElementType, Shape};
use weir_workflow::{
    Document, Plan, ReadyStep, Run, RunError, StepAction, TensorHandle, TensorPart, TensorView, split,
};

/// A column of numbers, and whether only steps that run a target may read it.
#[derive(Debug, Clone)]
struct Column(Rc<(Vec<u8>, Shape)>, bool);

impl Column {
    fn new(values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self(Rc::new((bytes, Shape::new(&[values.len() as u32]).unwrap())), false)
    }

    fn values(&self) -> Vec<f32> {
        self.0.0.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

impl TensorHandle for Column {
    fn view(&self) -> TensorView<'_> {
        let data = if self.1 { &[] } else { &self.0.0[..] };
        TensorView { datatype: ElementType::Fp32, shape: &self.0.1, data }
    }
}

/// A step of a generated workflow.
#[derive(Debug, Clone)]
struct Made {
    kind: EventKind,
    /// Indexes of the values before it.
    reads: Vec<usize>,
    guard: Option<(usize, bool, f32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    Model,
    First,
    Concat,
    Split,
}

fn made() -> impl Strategy<Value = Vec<Made>> {
    let kind = prop_oneof![
        4 => Just(EventKind::Model), 1 => Just(EventKind::First), 2 => Just(EventKind::Concat), 1 => Just(EventKind::Split)
    ];
    let guard = prop::option::weighted(0.3, (0_usize..1_000, any::<bool>(), 0.1_f32..0.9));
    let step = (kind, prop::collection::vec(0_usize..1_000, 1..4), guard);
    let step = step.prop_map(|(kind, reads, guard)| Made { kind, reads, guard });
    prop::collection::vec(step, 1..9)
}

/// The steps as a document. A final step joins all unread values and an input, so that the output
/// is always present.
fn document(steps: &[Made]) -> String {
    let mut sources = vec!["x".to_owned(), "y".to_owned()];
    let mut unread: BTreeSet<String> = BTreeSet::from(["y".to_owned()]);
    let mut text = String::from("inputs = { x = \"FP32[?]\", y = \"FP32[?]\" }\n");
    let mut conditions = 0;
    let mut splits = 0;
    for (number, Made { kind, reads, guard }) in steps.iter().enumerate() {
        let mut of: Vec<String> = reads.iter().map(|read| sources[read % sources.len()].clone()).collect();
        of.sort();
        of.dedup();
        let kind = if *kind == EventKind::Split && splits == 2 { EventKind::Model } else { *kind };
        if kind == EventKind::Split {
            splits += 1;
            of.truncate(1);
        }
        let list = of.iter().map(|source| format!("{source:?}")).collect::<Vec<_>>().join(", ");
        writeln!(text, "[steps.s{number}]").unwrap();
        match kind {
            EventKind::Model => {
                let inputs: Vec<_> =
                    of.iter().enumerate().map(|(i, source)| format!("i{i} = {source:?}")).collect();
                writeln!(text, "run = \"m\"\ninputs = {{ {} }}", inputs.join(", ")).unwrap();
                writeln!(text, "outputs = {{ a = \"FP32[?]\", b = \"FP32[?]\" }}").unwrap();
            }
            EventKind::First => writeln!(text, "combine = \"first\"\nof = [{list}]").unwrap(),
            EventKind::Concat => writeln!(text, "combine = \"concat\"\nof = [{list}]").unwrap(),
            EventKind::Split => writeln!(text, "split = {list}\nparts = 3").unwrap(),
        }
        if let Some((read, holds, number)) = guard.filter(|_| conditions < 5) {
            conditions += 1;
            let source = sources[read % sources.len()].clone();
            let key = if holds { "when" } else { "unless" };
            writeln!(text, "{key} = \"max({source}) < {number}\"").unwrap();
            unread.remove(&source);
        }
        of.iter().for_each(|source| _ = unread.remove(source));
        let outputs: &[&str] = match kind {
            EventKind::Model => &["a", "b"],
            EventKind::First | EventKind::Concat => &["output"],
            EventKind::Split => &["0", "1", "2"],
        };
        for output in outputs {
            sources.push(format!("s{number}.{output}"));
            unread.insert(format!("s{number}.{output}"));
        }
    }
    unread.insert("x".to_owned());
    let of = unread.iter().map(|source| format!("{source:?}")).collect::<Vec<_>>().join(", ");
    writeln!(text, "[steps.join]\ncombine = \"concat\"\nof = [{of}]\n[outputs]\nall = \"join\"").unwrap();
    text
}

/// The output of a model: numbers in 0..1 that depend on all inputs.
fn model(step: &str, output: &str, inputs: &[Vec<f32>]) -> Vec<f32> {
    let seed =
        step.bytes().chain(output.bytes()).fold(7_u32, |sum, byte| sum * 31 % 65_521 + u32::from(byte));
    let sum: f32 = inputs.iter().flatten().sum();
    let rows = inputs.first().map_or(1, Vec::len);
    (0..rows).map(|row| (seed as f32 * 0.37 + sum * 1.7 + row as f32 * 0.29).fract()).collect()
}

/// Computes the outputs of every step by definition.
struct Oracle<'a> {
    document: &'a Document,
    values: BTreeMap<String, Option<Vec<f32>>>,
}

impl Oracle<'_> {
    fn source(&mut self, source: &str) -> Option<Vec<f32>> {
        if let Some(known) = self.values.get(source) {
            return known.clone();
        }
        let (name, _) = source.split_once('.').unwrap_or((source, ""));
        let given = self.step(name);
        let outputs: &[&str] = &["a", "b", "output", "0", "1", "2"];
        for (place, output) in outputs.iter().enumerate() {
            let value = given.as_ref().and_then(|given| given.get(place).cloned().flatten());
            self.values.insert(format!("{name}.{output}"), value);
        }
        self.values.get(source).cloned().flatten()
    }

    fn runs(&mut self, name: &str) -> bool {
        self.step(name).is_some()
    }

    fn step(&mut self, name: &str) -> Option<Vec<Option<Vec<f32>>>> {
        let step = self.document.steps.get(name).unwrap().clone();
        for (condition, wanted) in [(&step.when, true), (&step.unless, false)] {
            let Some(condition) = condition else { continue };
            let text = condition.to_string();
            let (source, number) = text.strip_prefix("max(").unwrap().split_once(") < ").unwrap();
            let largest = self.source(source)?.into_iter().fold(f32::NEG_INFINITY, f32::max);
            if (f64::from(largest) < number.parse().unwrap()) != wanted {
                return None;
            }
        }
        if let Some(source) = &step.split {
            let whole = self.source(&source.to_string())?;
            let column = Column::new(&whole);
            let mut at = 0;
            let mut parts = vec![None, None, None];
            for TensorPart { shape, .. } in split(column.view(), 3).unwrap() {
                let rows = shape.dimensions()[0] as usize;
                parts.push(Some(whole[at..at + rows].to_vec()));
                at += rows;
            }
            return Some(parts);
        }
        if let Some(combiner) = step.combine {
            let of: Vec<_> = step.of.iter().filter_map(|source| self.source(&source.to_string())).collect();
            let first = of.first()?.clone();
            let made = if combiner == weir_workflow::Combiner::First { first } else { of.concat() };
            return Some(vec![None, None, Some(made)]);
        }
        let inputs: Option<Vec<_>> =
            step.inputs.iter().map(|(_, source)| self.source(&source.to_string())).collect();
        let inputs = inputs?;
        Some(vec![Some(model(name, "a", &inputs)), Some(model(name, "b", &inputs))])
    }
}

/// The outputs of a step. Outputs that may be handed on are returned without data.
fn perform(
    plan: &Plan,
    ReadyStep { step, inputs, handed_on, .. }: &ReadyStep<Column>,
) -> Vec<(String, Column)> {
    let mut given = made_of(plan, *step, inputs);
    given.iter_mut().for_each(|(name, column)| column.1 |= handed_on.contains(name));
    given
}

fn made_of(plan: &Plan, step: usize, inputs: &[(String, Column)]) -> Vec<(String, Column)> {
    let planned = &plan.steps()[step];
    let is_run = matches!(planned.action, StepAction::Run(_));
    assert!(
        is_run || inputs.iter().all(|(_, column)| !column.1),
        "{} looks at what is elsewhere",
        planned.name
    );
    let values: Vec<_> = inputs.iter().map(|(_, column)| column.values()).collect();
    match &planned.action {
        StepAction::Run(_) => ["a", "b"]
            .map(|output| (output.to_owned(), Column::new(&model(&planned.name, output, &values))))
            .into(),
        StepAction::Combine(weir_workflow::Combiner::First) => vec![("output".into(), inputs[0].1.clone())],
        StepAction::Combine(_) => vec![("output".into(), Column::new(&values.concat()))],
        StepAction::Split { parts } => {
            let whole = &inputs[0].1;
            let bytes = &whole.0.0;
            let parts = split(whole.view(), *parts).unwrap().into_iter().enumerate();
            parts
                .map(|(number, part)| {
                    let values: Vec<_> = bytes[part.range]
                        .as_chunks()
                        .0
                        .iter()
                        .map(|bytes| f32::from_le_bytes(*bytes))
                        .collect();
                    (number.to_string(), Column::new(&values))
                })
                .collect()
        }
    }
}

/// The steps that read each value, by the value's source.
fn readers(document: &Document) -> HashMap<String, BTreeSet<String>> {
    let mut readers: HashMap<String, BTreeSet<String>> = HashMap::new();
    for (name, step) in document.steps.iter() {
        let conditions = [&step.when, &step.unless].into_iter().flatten().map(|condition| {
            let text = condition.to_string();
            text[4..text.find(')').unwrap()].to_owned()
        });
        let inputs = step.inputs.iter().map(|(_, source)| source.to_string());
        let of = step.of.iter().chain(&step.split).map(ToString::to_string);
        for source in inputs.chain(of).chain(conditions) {
            readers.entry(source).or_default().insert(name.to_owned());
        }
    }
    readers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn run_matches_the_definition_for_any_completion_order(
        steps in made(),
        x in prop::collection::vec(0_f32..1.0, 1..6),
        y in prop::collection::vec(0_f32..1.0, 1..6),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let text = document(&steps);
        let document = Document::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}\n{error}"));
        let plan = match Plan::new(&document, &|_, _| Ok(None)) {
            Ok(plan) => std::sync::Arc::new(plan),
            // The generator may produce such workflows.
            Err(weir_workflow::PlanError::NeverRuns(_) | weir_workflow::PlanError::TooManyCases) => return Ok(()),
            Err(error) => panic!("{text}\n{error}"),
        };
        let inputs = BTreeMap::from([("x".to_owned(), Some(x.clone())), ("y".to_owned(), Some(y.clone()))]);
        let mut oracle = Oracle { document: &document, values: inputs };
        let readers = readers(&document);

        let given = vec![("y".to_owned(), Column::new(&y)), ("x".to_owned(), Column::new(&x))];
        let mut alive: Vec<(String, Weak<_>)> = given.iter().map(|(name, column)| (name.clone(), Rc::downgrade(&column.0))).collect();
        let mut run = Run::new(plan.clone(), given, None, || 0.0).unwrap();
        let mut under_way = Vec::new();
        let mut done = BTreeSet::new();
        let mut picks = picks.iter();
        loop {
            while let Some(begin) = run.next_step() {
                let name = &plan.steps()[begin.step].name;
                prop_assert!(oracle.runs(name), "{name} should not run\n{text}");
                prop_assert!(done.insert(name.clone()), "{name} runs twice");
                let outputs = perform(&plan, &begin);
                under_way.push((begin.step, outputs));
            }
            if under_way.is_empty() {
                break;
            }
            let pick = picks.next().map_or(0, |pick| pick.index(under_way.len()));
            let (step, outputs) = under_way.swap_remove(pick);
            let name = &plan.steps()[step].name;
            // A value that passes through a combiner still belongs to another step.
            if !matches!(plan.steps()[step].action, StepAction::Combine(_)) {
                alive.extend(outputs.iter().map(|(output, column)| (format!("{name}.{output}"), Rc::downgrade(&column.0))));
            }
            run.finished(step, outputs).unwrap();
            while let Some(begin) = run.next_step() {
                let name = &plan.steps()[begin.step].name;
                prop_assert!(oracle.runs(name) && done.insert(name.clone()), "{name}\n{text}");
                under_way.push((begin.step, perform(&plan, &begin)));
            }
            let passes = |source: &String| readers.get(source).into_iter().flatten().any(|step| document.steps.get(step).unwrap().combine.is_some());
            for (source, value) in alive.iter().filter(|(source, _)| !passes(source)) {
                let all_have_it = readers.get(source).into_iter().flatten().all(|reader| done.contains(reader));
                prop_assert!(!all_have_it || value.upgrade().is_none(), "{source} is held after its last reader\n{text}");
            }
        }
        prop_assert!(run.is_over(), "{text}");
        for (name, _) in document.steps.iter() {
            // A step that could have run but did not has no reader that ran.
            let has_readers = readers.iter().any(|(source, readers)| {
                source.split('.').next() == Some(name) && readers.iter().any(|reader| done.contains(reader))
            });
            prop_assert!(done.contains(name) || !oracle.runs(name) || !has_readers, "{}\n{}", name, text);
        }
        let outputs = run.into_outputs();
        prop_assert_eq!(outputs.len(), 1);
        prop_assert_eq!(Some(outputs[0].1.values()), oracle.source("join.output"), "{}", text);
        let held = outputs[0].1.clone();
        drop(outputs);
        for (source, value) in alive {
            let is_output = value.upgrade().is_some_and(|value| Rc::ptr_eq(&value, &held.0));
            prop_assert!(is_output || value.upgrade().is_none(), "{source} is held after the run\n{text}");
        }
    }

    #[test]
    fn chance_condition_follows_the_draw(draw in 0_f64..1.0) {
        let text = "
            inputs = { x = \"FP32[?]\" }
            [steps.new]
            run = \"m\"
            inputs = { i = \"x\" }
            when = \"chance(0.25)\"
            [steps.old]
            run = \"m\"
            inputs = { i = \"x\" }
            unless = \"chance(0.25)\"
            [steps.one]
            combine = \"first\"
            of = [\"new\", \"old\"]
            [outputs]
            y = \"one\"
        ";
        let plan = Plan::new(&Document::parse(text.as_bytes()).unwrap(), &|_, _| Ok(None)).unwrap();
        let given = vec![("x".to_owned(), Column::new(&[1.0]))];
        let mut run = Run::new(plan.into(), given, None, || draw).unwrap();
        let begun = run.next_step().unwrap();
        prop_assert_eq!(run.plan().steps()[begun.step].name.as_str(), if draw < 0.25 { "new" } else { "old" });
        prop_assert!(run.next_step().is_none());
    }
}

#[test]
fn steps_without_readers_do_not_start() {
    // Only `late` reads `slow`, and the condition excludes `late` once `first` is computed.
    let text = "
        inputs = { x = \"FP32[?]\" }
        [steps.first]
        run = \"m\"
        inputs = { i = \"x\" }
        [steps.slow]
        run = \"m\"
        inputs = { i = \"first\", j = \"x\" }
        [steps.late]
        run = \"m\"
        inputs = { i = \"slow\" }
        when = \"max(first) > 0.5\"
        [steps.one]
        combine = \"first\"
        of = [\"late\", \"first\"]
        [outputs]
        y = \"one\"
    ";
    let plan: std::sync::Arc<_> =
        Plan::new(&Document::parse(text.as_bytes()).unwrap(), &|_, _| Ok(None)).unwrap().into();
    for (value, steps) in [(0.25, vec!["first", "one"]), (0.75, vec!["first", "slow", "late", "one"])] {
        let mut run =
            Run::new(plan.clone(), vec![("x".to_owned(), Column::new(&[1.0]))], None, || 0.0).unwrap();
        let mut begun = Vec::new();
        while let Some(begin) = run.next_step() {
            begun.push(plan.steps()[begin.step].name.as_str());
            assert!(!run.is_sure(begin.step) || ["first", "one"].contains(begun.last().unwrap()));
            let outputs = begin.outputs.iter().map(|name| (name.clone(), Column::new(&[value]))).collect();
            run.finished(begin.step, outputs).unwrap();
        }
        assert!(run.is_over());
        assert_eq!(begun, steps);
    }
}

/// `a` returns FP32[n] and FP32[2]; `b` combines the first with the input, which is FP32[n], too.
fn typed() -> std::sync::Arc<Plan> {
    let text = "
        inputs = { x = \"FP32[n]\" }
        [steps.a]
        run = \"m\"
        inputs = { i = \"x\" }
        outputs = { y = \"FP32[n]\", z = \"FP32[2]\" }
        [steps.b]
        combine = \"mean\"
        of = [\"x\", \"a.y\"]
        [outputs]
        mean = \"b\"
        z = \"a.z\"
    ";
    Plan::new(&Document::parse(text.as_bytes()).unwrap(), &|_, _| Ok(None)).unwrap().into()
}

#[test]
fn run_time_type_errors_name_the_step_or_input() {
    let column = |len: usize| Column::new(&vec![0.5; len]);
    let new = |inputs: Vec<(&str, Column)>, wanted: Option<&[&str]>| {
        let inputs = inputs.into_iter().map(|(name, column)| (name.to_owned(), column)).collect();
        let wanted: Option<Vec<_>> = wanted.map(|names| names.iter().map(ToString::to_string).collect());
        Run::new(typed(), inputs, wanted.as_deref(), || 0.0)
    };
    let why = |run: Result<Run<Column>, RunError>| run.map(drop).unwrap_err().to_string();
    assert_eq!(why(new(vec![], None)), "input x: FP32[?] is missing");
    assert!(
        why(new(vec![("w", column(1))], None))
            .starts_with("the workflow has no input \"w\"; its inputs are x: FP32[?]")
    );
    assert_eq!(why(new(vec![("x", column(1)), ("x", column(1))], None)), "input \"x\" is given twice");
    let scalar = Column(Rc::new((vec![0; 4], Shape::default())), false);
    assert_eq!(why(new(vec![("x", scalar)], None)), "input x: FP32[?] is given as FP32[]");
    assert!(why(new(vec![("x", column(1))], Some(&["q"]))).contains("no output \"q\"; its outputs are"));
    assert!(why(new(vec![("x", column(1))], Some(&["z", "z"]))).contains("wanted twice"));
    assert!(why(new(vec![("x", column(1))], Some(&[]))).contains("is empty"));

    let outputs = |y: usize, z: usize| vec![("y".to_owned(), column(y)), ("z".to_owned(), column(z))];
    let run = |outputs| {
        let mut run = new(vec![("x", column(3))], None).unwrap();
        let begun = run.next_step().unwrap();
        run.finished(begun.step, outputs).map(|()| run)
    };
    assert!(run(outputs(3, 2)).is_ok());
    assert_eq!(
        run(outputs(4, 2)).map(drop).unwrap_err().to_string(),
        "step a: its output y is FP32[4], where the workflow needs FP32[3]"
    );
    assert_eq!(
        run(outputs(3, 3)).map(drop).unwrap_err().to_string(),
        "step a: its output z is FP32[3], where the workflow needs FP32[2]"
    );
    assert_eq!(run(vec![]).map(drop).unwrap_err().to_string(), "step a: it gave no output \"y\"");

    // A step is asked only for the requested outputs.
    let mut run = new(vec![("x", column(3))], Some(&["z"])).unwrap();
    let begun = run.next_step().unwrap();
    assert_eq!(begun.outputs, ["z"]);
    run.finished(begun.step, vec![("z".to_owned(), column(2))]).unwrap();
    assert!(run.next_step().is_none() && run.is_over());
    assert_eq!(run.into_outputs().len(), 1);
}
