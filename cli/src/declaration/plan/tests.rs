use super::*;
use crate::declaration::current::{CurrentFunction, EnvState, FunctionState};
use crate::declaration::declared::{DeclaredCanary, DeclaredFunction};
use proptest::collection::{btree_map, btree_set};
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;
use weir_types::api::{Canary, MissedPolicy, OverlapPolicy, TriggerRequest, TriggerSource, TriggerTarget};
use weir_types::{ContentHash, FunctionManifest, ModelRef, Version};

const ALL: [Kind; 4] = [Kind::Model, Kind::Function, Kind::Workflow, Kind::Trigger];

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn digest(number: u8) -> ContentHash {
    ContentHash::from_content(&[number])
}

fn file(number: u8) -> Content {
    Content::File { path: "a".into(), digest: digest(number), bytes: 1 + u64::from(number) }
}

fn plan(declared: &Declared, current: &Current, prune: &[Kind]) -> Result<Plan, Vec<String>> {
    Plan::new(declared, current, &prune.iter().copied().collect())
}

/// A node that makes the changes of a plan as the real node does. Its state has the values of
/// environment variables, which [`Node::observe`] hides.
#[derive(Debug, Default)]
struct Node {
    state: Current,
    versions: u32,
}

impl Node {
    /// The state as a client sees it.
    fn observe(&self, declared: &Declared) -> Current {
        let mut seen = self.state.clone();
        for (name, function) in &mut seen.functions {
            let env = declared.functions.get(name).map(|function| &function.manifest.env);
            let versions = function.canary.iter_mut().map(|(_, version)| version);
            for version in versions.chain([&mut function.active]) {
                let EnvState::Values(values) = &version.env else { panic!("the node knows the values") };
                if Some(values) != env {
                    version.env = EnvState::Names(values.keys().cloned().collect());
                }
            }
        }
        seen
    }

    fn next_version(&mut self) -> Version {
        self.versions += 1;
        Version(self.versions)
    }

    /// Workflows that run `target` without a version are not up to date any more.
    fn has_moved(&mut self, target: &Name) {
        let target = ModelRef { name: target.clone(), version: None };
        for workflow in self.state.workflows.values_mut().filter(|workflow| workflow.runs.contains(&target)) {
            workflow.is_up_to_date = false;
        }
    }

    fn make(&mut self, declared: &Declared, step: &Step) {
        let Step { kind, name, action, .. } = step;
        if *action == Action::Delete {
            let was_there = match kind {
                Kind::Model => self.state.models.remove(name).is_some(),
                Kind::Function => self.state.functions.remove(name).is_some(),
                Kind::Workflow => self.state.workflows.remove(name).is_some(),
                Kind::Trigger => self.state.triggers.remove(name).is_some(),
                Kind::Aliases => panic!("aliases are deleted with their item"),
            };
            assert!(was_there, "{name} was deleted twice");
            let users =
                self.state.workflows.values().filter(|user| user.runs.iter().any(|run| run.name == *name));
            assert_eq!(users.count(), 0, "{name} was deleted before a workflow that runs it");
            return;
        }
        let version = self.next_version();
        match kind {
            Kind::Model => {
                let model = &declared.models[name];
                let made = CurrentModel {
                    digest: model.content.digest(),
                    manifest: model.manifest.clone(),
                    outputs: Vec::new(),
                };
                let before = self.state.models.insert(name.clone(), made);
                assert_eq!(before.is_none(), *action == Action::Create);
                self.has_moved(name);
            }
            Kind::Function => self.deploy(declared, step, version),
            Kind::Aliases => {
                let of = Aliased::new(step.of.unwrap(), name);
                self.state.aliases.insert(of.clone(), declared.aliases[&of].clone());
            }
            Kind::Workflow => {
                let DeclaredWorkflow { document, slo_ms, cost_slo, runs, .. } =
                    declared.workflows[name].clone();
                let made = CurrentWorkflow { document, slo_ms, cost_slo, runs, is_up_to_date: true };
                let before = self.state.workflows.insert(name.clone(), made);
                assert_eq!(before.is_none(), *action == Action::Create);
                self.has_moved(name);
            }
            Kind::Trigger => {
                let before = self.state.triggers.insert(name.clone(), declared.triggers[name].clone());
                assert_eq!(before.is_none(), *action == Action::Create);
            }
        }
    }

    fn deploy(&mut self, declared: &Declared, step: &Step, version: Version) {
        let name = &step.name;
        let function = &declared.functions[name];
        let made = FunctionState {
            version,
            digest: function.content.digest(),
            manifest: FunctionManifest { env: BTreeMap::new(), ..function.manifest.clone() },
            env: EnvState::Values(function.manifest.env.clone()),
        };
        let Some(known) = self.state.functions.get_mut(name) else {
            assert_eq!((step.action, step.upload_bytes), (Action::Create, function.content.bytes().unwrap()));
            self.state.functions.insert(name.clone(), CurrentFunction { active: made, canary: None });
            return self.has_moved(name);
        };
        let is_stored = known.active.digest == made.digest
            || known.canary.as_ref().is_some_and(|(_, version)| version.digest == made.digest);
        assert_eq!(step.upload_bytes == 0, is_stored, "only what the node lacks is sent");
        match step.action {
            Action::Promote => {
                let (_, promoted) = known.canary.take().expect("a canary to promote");
                known.active = promoted;
            }
            Action::Canary => {
                let DeclaredCanary { percent, promote_after_ms } = function.canary.unwrap();
                let same = |(_, canary): &(Canary, FunctionState)| {
                    (canary.digest, &canary.manifest, &canary.env) == (made.digest, &made.manifest, &made.env)
                };
                let kept = known.canary.take().filter(same).map(|(_, canary)| canary);
                let canary = kept.unwrap_or(made);
                let share = Canary { version: canary.version, percent, promote_after_ms, started_at_ms: 0 };
                known.canary = Some((share, canary));
                return;
            }
            _ => *known = CurrentFunction { active: made, canary: None },
        }
        self.has_moved(name);
    }

    /// Makes the changes of a plan for `declared`, which must leave no differences.
    fn apply(&mut self, declared: &Declared, prune: &[Kind]) -> Plan {
        let made = plan(declared, &self.observe(declared), prune).unwrap();
        for step in &made.steps {
            self.make(declared, step);
        }
        let again = plan(declared, &self.observe(declared), prune).unwrap();
        assert_eq!(again.steps, [], "after {:?}", made.steps);
        made
    }
}

fn manifests() -> impl Strategy<Value = FunctionManifest> {
    (option::of(1..3_u64), btree_map("[AB]", "[01]", 0..3)).prop_map(|(slo_ms, env)| FunctionManifest {
        slo_ms,
        env,
        ..FunctionManifest::default()
    })
}

fn declarations() -> impl Strategy<Value = Declared> {
    let names = |letter: char| (0..3_u8).prop_map(move |number| name(&format!("{letter}{number}")));
    let model = (0..3_u8, option::of(1..3_u32)).prop_map(|(number, slots)| DeclaredModel {
        content: file(number),
        manifest: ModelManifest { slots, ..ModelManifest::default() },
    });
    let canary = (10..12_u8, option::of(5..7_u64))
        .prop_map(|(percent, promote_after_ms)| DeclaredCanary { percent, promote_after_ms });
    let function = (0..3_u8, manifests(), option::of(canary))
        .prop_map(|(number, manifest, canary)| DeclaredFunction { content: file(number), manifest, canary });
    let runs = btree_set("[mfw][0-2](:1)?", 0..3);
    let workflow = ("[ab]", option::of(1..3_u64), runs);
    let trigger = (1..3_u64, option::of("[ab]")).prop_map(|(every_ms, body)| TriggerSpec {
        source: TriggerSource { every_ms: Some(every_ms), ..TriggerSource::default() },
        target: TriggerTarget { function: Some(name("f")), ..TriggerTarget::default() },
        request: TriggerRequest { body, ..TriggerRequest::default() },
        enabled: true,
        missed: MissedPolicy::Skip,
        missed_age_ms_max: 0,
        overlap: OverlapPolicy::Allow,
    });
    let all = (
        btree_map(names('m'), model, 0..4),
        btree_map(names('f'), function, 0..4),
        btree_map(names('w'), workflow, 0..4),
        btree_map(names('t'), trigger, 0..4),
    );
    all.prop_map(|(models, functions, workflows, triggers)| {
        let names: BTreeSet<Name> =
            models.keys().chain(functions.keys()).chain(workflows.keys()).cloned().collect();
        let workflow = |(own, (document, slo_ms, runs)): (Name, (String, Option<u64>, BTreeSet<String>))| {
            // A workflow runs only workflows with smaller names, so there is no cycle.
            let may_run = |run: &ModelRef| !run.name.as_str().starts_with('w') || run.name < own;
            let runs = runs.iter().map(|run| run.parse::<ModelRef>().unwrap());
            let runs: BTreeSet<_> = runs.filter(|run| names.contains(&run.name) && may_run(run)).collect();
            // The text of a document determines what its steps run.
            let document = format!("{document} {runs:?}");
            (own, DeclaredWorkflow { document, slo_ms, cost_slo: None, runs, keeps_versions: false })
        };
        let workflows = workflows.into_iter().map(workflow).collect();
        Declared { models, functions, workflows, triggers, ..Declared::default() }
    })
}

proptest! {
    #[test]
    fn applied_declarations_have_no_differences(first in declarations(), second in declarations()) {
        let mut node = Node::default();
        let all = |of: &Declared| of.models.len() + of.functions.len() + of.workflows.len() + of.triggers.len();
        let created = node.apply(&first, &[]);
        prop_assert!(created.steps.iter().all(|step| step.action == Action::Create));
        prop_assert_eq!(created.steps.len(), all(&first));
        let changed = node.apply(&second, &[]);
        prop_assert_eq!(changed.deletions().count(), 0);
        prop_assert_eq!(changed.steps.len() + changed.unchanged, all(&second));
        // A workflow of the first declaration may run a function or model that the second omits, so
        // a deletion in the wrong order fails.
        node.apply(&second, &ALL);
        let Current { models, functions, workflows, triggers, .. } = &node.state;
        prop_assert!(models.keys().eq(second.models.keys()));
        prop_assert!(functions.keys().eq(second.functions.keys()));
        prop_assert!(workflows.keys().eq(second.workflows.keys()));
        prop_assert_eq!(triggers, &second.triggers);
    }

    #[test]
    fn every_difference_has_its_fields(first in declarations(), second in declarations()) {
        let mut node = Node::default();
        node.apply(&first, &[]);
        for step in plan(&second, &node.observe(&second), &[]).unwrap().steps {
            prop_assert_eq!(step.fields.is_empty(), step.action == Action::Create, "{:?}", step);
        }
    }
}

/// A declaration of the function `f`.
fn function(number: u8, env: &[(&str, &str)], canary: Option<u8>) -> Declared {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let manifest = FunctionManifest { env, ..FunctionManifest::default() };
    let canary = canary.map(|percent| DeclaredCanary { percent, promote_after_ms: None });
    let function = DeclaredFunction { content: file(number), manifest, canary };
    Declared { functions: BTreeMap::from([(name("f"), function)]), ..Declared::default() }
}

#[test]
fn aliases_are_set_after_their_items_and_before_workflows_that_may_use_them() {
    let versions = |text: &[(&str, u32)]| -> DeclaredAliases {
        text.iter().map(|(alias, version)| (alias.parse().unwrap(), Version(*version))).collect()
    };
    let with = |number, aliases| {
        let mut declared = function(number, &[], None);
        let runs = BTreeSet::from(["f:eu".parse().unwrap()]);
        let workflow = DeclaredWorkflow {
            document: String::new(),
            slo_ms: None,
            cost_slo: None,
            runs,
            keeps_versions: false,
        };
        declared.workflows.insert(name("w"), workflow);
        declared.aliases.insert(Aliased::new(Aliased::FUNCTIONS, &name("f")), versions(aliases));
        declared
    };
    let mut node = Node::default();
    let kinds = |plan: &Plan| plan.steps.iter().map(|step| step.kind).collect::<Vec<_>>();
    let created = node.apply(&with(1, &[("eu", 1)]), &[]);
    assert_eq!(kinds(&created), [Kind::Function, Kind::Aliases, Kind::Workflow]);
    let changed = node.apply(&with(1, &[("us", 1)]), &[]);
    assert_eq!(kinds(&changed), [Kind::Aliases, Kind::Workflow], "the alias may move the step");
    let fields: Vec<_> =
        changed.steps[0].fields.iter().map(|field| (&*field.field, field.to.clone())).collect();
    assert_eq!(fields, [("eu", serde_json::Value::Null), ("us", 1.into())], "a list is complete");
    let without = node.apply(&function(1, &[], None), &[]);
    assert_eq!(without.steps, [], "aliases stay without a list of them");
}

#[test]
fn values_of_variables_are_compared_and_never_shown() {
    let mut node = Node::default();
    node.apply(&function(1, &[("A", "secret-1"), ("B", "b")], None), &[]);
    let changed = node.apply(&function(1, &[("A", "secret-2"), ("C", "c")], None), &[]);
    let fields: Vec<&str> = changed.steps[0].fields.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["env.B", "env.C"], "the names differ, so the values of `A` are unknown");
    let changed = node.apply(&function(1, &[("A", "secret-3"), ("C", "c")], None), &[]);
    let fields = &changed.steps[0].fields;
    assert_eq!(fields.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), ["env"]);
    assert!(!format!("{fields:?}").contains("secret"), "{fields:?}");
    assert_eq!(changed.steps[0].upload_bytes, 0, "the node has the component");
}

#[test]
fn canary_is_started_changed_and_promoted() {
    let mut node = Node::default();
    let mut actions = |declared: Declared| {
        let steps = node.apply(&declared, &[]).steps;
        steps.iter().map(|step| step.action).collect::<Vec<_>>()
    };
    assert_eq!(actions(function(1, &[], Some(10))), [Action::Create]);
    assert_eq!(actions(function(2, &[], Some(10))), [Action::Canary]);
    assert_eq!(actions(function(2, &[], Some(50))), [Action::Canary]);
    assert_eq!(actions(function(2, &[], None)), [Action::Promote]);
    assert_eq!(actions(function(2, &[], Some(50))), []);
    assert_eq!(actions(function(3, &[], Some(50))), [Action::Canary]);
    assert_eq!(actions(function(4, &[], None)), [Action::Update]);
}

#[test]
fn hash_alone_is_enough_only_for_content_that_the_node_has() {
    let stored = |number: u8| {
        let mut declared = function(number, &[("A", "b")], None);
        declared.functions.get_mut(&name("f")).unwrap().content = Content::Stored(digest(number));
        declared
    };
    let mut node = Node::default();
    let error = plan(&stored(1), &node.state, &[]).unwrap_err();
    assert!(error[0].contains("functions.f has only a `digest`") && error[0].contains("give `component`"));
    node.apply(&function(1, &[], None), &[]);
    assert_eq!(node.apply(&stored(1), &[]).steps[0].action, Action::Update);

    let model = |content, slots| {
        let manifest = ModelManifest { slots, ..ModelManifest::default() };
        let models = BTreeMap::from([(name("m"), DeclaredModel { content, manifest })]);
        Declared { models, ..Declared::default() }
    };
    node.apply(&model(file(1), None), &[]);
    assert_eq!(node.apply(&model(Content::Stored(digest(1)), None), &[]).steps, []);
    let error = plan(&model(Content::Stored(digest(1)), Some(2)), &node.state, &[]).unwrap_err();
    assert!(error[0].contains("a push needs the file"), "{error:?}");
}

#[test]
fn workflows_follow_their_targets() {
    let workflow = |runs: &[&str]| DeclaredWorkflow {
        document: "d".to_owned(),
        slo_ms: None,
        cost_slo: None,
        runs: runs.iter().map(|run| run.parse().unwrap()).collect(),
        keeps_versions: false,
    };
    let declared = |number: u8| Declared {
        workflows: BTreeMap::from([
            (name("outer"), workflow(&["z-inner"])),
            (name("pinned"), workflow(&["f:1"])),
            (name("z-inner"), workflow(&["f"])),
        ]),
        ..function(number, &[], None)
    };
    let mut node = Node::default();
    node.apply(&declared(1), &[]);
    let changed = node.apply(&declared(2), &[]);
    let names: Vec<&str> = changed.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["f", "z-inner", "outer"]);
    assert_eq!(changed.steps[1].fields[0].to, "the newest version of f");

    let cycle = Declared {
        workflows: BTreeMap::from([(name("a"), workflow(&["b"])), (name("b"), workflow(&["a"]))]),
        ..Declared::default()
    };
    assert_eq!(
        plan(&cycle, &node.state, &[]).unwrap_err(),
        ["these workflows run each other in a cycle: a, b"]
    );
}
