//! Workflows: graphs of models and tensor functions, called like one model.
//!
//! The crate is pure: functions of plain data, without devices, clocks or threads. In order of use:
//! [`Document::parse`] reads a workflow in TOML or JSON. [`Plan::new`] resolves the targets of its
//! steps, checks that every tensor fits where it is read and that every output is always present,
//! and pins the versions. A [`Run`] of the plan returns the steps to start, takes their outputs,
//! evaluates conditions, and drops each tensor after its last read. [`Combination`] and [`split`]
//! implement the steps that need no model.
//!
//! ```
//! use weir_types::{ContentHash, ElementType, Name, Port, Shape, Signature, Version};
//! use weir_workflow::{Document, Pinned, Plan, Run, TargetKind, TensorHandle, TensorView};
//!
//! let document = Document::parse(br#"
//!     [inputs]
//!     image = "FP32[n, 2]"
//!     [steps.small]
//!     run = "digits-small"
//!     inputs = { x = "image" }
//!     [steps.large]
//!     run = "digits-large"
//!     inputs = { x = "image" }
//!     when = "confidence(small) < 0.8"
//!     [steps.surer]
//!     combine = "best"
//!     of = ["small", "large"]
//!     [outputs]
//!     probabilities = "surer"
//! "#)?;
//! let port = |name: &str| Port {
//!     name: name.into(),
//!     datatype: ElementType::Fp32,
//!     shape: vec![None, Some(2)],
//! };
//! let plan = Plan::new(&document, &|_step, reference| {
//!     Ok(Some(Pinned {
//!         kind: TargetKind::Model,
//!         name: reference.name.clone(),
//!         version: Version(1),
//!         digest: ContentHash::from_content(b"a model"),
//!         signature: Some(Signature { inputs: vec![port("x")], outputs: vec![port("y")] }),
//!         depth: 0,
//!         runs: 0,
//!     }))
//! })?;
//!
//! #[derive(Clone)]
//! struct Row(Vec<u8>, Shape);
//! impl TensorHandle for Row {
//!     fn view(&self) -> TensorView<'_> {
//!         TensorView { datatype: ElementType::Fp32, shape: &self.1, data: &self.0 }
//!     }
//! }
//! let row = |values: [f32; 2]| {
//!     Row(values.into_iter().flat_map(f32::to_le_bytes).collect(), Shape::new(&[1, 2]).unwrap())
//! };
//!
//! let mut run = Run::new(plan.into(), vec![("image".to_owned(), row([0.0, 1.0]))], None, || 0.0)?;
//! let small = run.next_step().expect("it depends on the input alone");
//! // The small model is confident enough, so the large model does not run.
//! run.finished(small.step, vec![("y".to_owned(), row([0.1, 0.9]))])?;
//! let surer = run.next_step().expect("the condition is told");
//! assert_eq!((run.plan().steps()[surer.step].name.as_str(), surer.inputs.len()), ("surer", 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod document;
pub use document::{
    DOCUMENT_BYTES_MAX, Document, DocumentError, NAME_LEN_MAX, NamedTable, PORTS_MAX, STEPS_MAX, Step,
    TensorSource,
};

mod tensor_type;
pub use tensor_type::{DimensionSpec, TensorSpec};

mod condition;
pub use condition::{CONDITION_ELEMENTS_MAX, Comparison, Condition, Measure};

mod error;
pub use error::{PlanError, RunError, TensorUse};

mod plan;
pub use plan::{
    CASES_MAX, DEPTH_MAX, Pinned, Plan, PlannedStep, RUNS_MAX, RunEstimate, StepAction, TargetKind,
    TargetResolver,
};

mod value;
pub use value::{TensorHandle, TensorView};

mod run;
pub use run::{ReadyStep, Run};

mod combine;
pub use combine::{Combination, Combiner};

mod split;
pub use split::{PARTS_MAX, TensorPart, split};
