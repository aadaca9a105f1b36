//! Checks for arbitrary bytes as a workflow document. The fuzzer uses them, and so does a test of
//! `workflow/`.

use weir_types::{ContentHash, Name, Version};
use weir_workflow::{Document, Pinned, Plan, TargetKind};

/// Parses or rejects a document, and plans it with and without its targets.
pub(crate) fn read_or_refuse(bytes: &[u8]) {
    let Ok(document) = Document::parse(bytes) else { return };
    let unknown = Plan::new(&document, &|_, _| Ok(None));
    let function = |name: &Name| Pinned {
        kind: TargetKind::Function,
        name: name.clone(),
        version: Version(1),
        digest: ContentHash::from_content(b""),
        signature: None,
        depth: 0,
        runs: 0,
    };
    let known = Plan::new(&document, &|_, wanted| Ok(Some(function(&wanted.name))));
    for plan in [unknown, known].into_iter().flatten() {
        // A plan describes every step that its document has.
        assert!(!plan.steps().is_empty());
        for step in plan.steps() {
            let _ = plan.condition_of(step);
            assert!(plan.reads(step).len() <= plan.steps().len() + plan.signature().inputs.len());
        }
    }
}
