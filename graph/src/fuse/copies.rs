//! Removal of copies of copies, and of copies that change nothing.

use super::strides::StridedWalk;
use crate::ir::{Copy, DIMS_MAX, Graph, Op, ValueId};

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let Some((source, walk)) = source(graph, index) else { continue };
        let Some(output) = graph.nodes[index].output(0) else { continue };
        let tensor = &graph.value(output).tensor;
        let is_whole = graph.value(source).tensor.elements() == tensor.elements()
            && walk.offset == 0
            && walk
                .along(&[tensor.elements()])
                .is_some_and(|strides| tensor.elements() == 1 || strides == [1]);
        if is_whole {
            graph.substitute(output, source);
            continue;
        }
        let part = walk.into_part();
        if part.dims.len() <= DIMS_MAX {
            let node = &mut graph.nodes[index];
            node.op = Op::Copy(Copy { fill: None, parts: vec![part] });
            node.inputs = vec![Some(source)];
        }
    }
}

/// Return the buffer and the walk that a node's output is a strided view of, if it is one.
pub(super) fn source(graph: &Graph, index: usize) -> Option<(ValueId, StridedWalk)> {
    let node = graph.nodes.get(index)?;
    let Op::Copy(copy) = &node.op else { return None };
    let part = copy.as_strided()?;
    let source = graph.buffer(node.input(part.input)?);
    let walk = StridedWalk::from_part(part);
    // Earlier nodes are already simplified, so one step back is enough.
    let further = graph.maker(source).and_then(|maker| {
        let Op::Copy(copy) = &graph.nodes.get(maker)?.op else { return None };
        let inner = copy.as_strided()?;
        Some((
            graph.buffer(graph.nodes.get(maker)?.input(inner.input)?),
            walk.through(&StridedWalk::from_part(inner))?,
        ))
    });
    Some(further.unwrap_or((source, walk)))
}
