//! Shapes of a run's outputs, computed from the shapes of its inputs before the run.

use crate::signature::dimensions;
use ort::session::Session;
use ort::value::{Outlet, ValueType};
use weir_inference::Tensor;
use weir_types::{ElementType, Shape, Signature};

/// Size of each output, as the model declares it.
pub(crate) struct OutputPlan(Vec<Option<Planned>>);

struct Planned {
    element_type: ElementType,
    sizes: Vec<Size>,
}

/// Size of one dimension.
enum Size {
    /// Always this size.
    Fixed(u32),
    /// The size of a dimension of an input with the same name.
    Of { input: usize, axis: usize },
}

impl OutputPlan {
    /// Creates the plan from a session of a model with this signature.
    pub(crate) fn new(session: &Session, signature: &Signature) -> Self {
        let outlet =
            |outlets: &'_ [Outlet], name: &str| outlets.iter().position(|outlet| outlet.name() == name);
        let inputs: Vec<Option<&Outlet>> = signature
            .inputs
            .iter()
            .map(|port| outlet(session.inputs(), &port.name).and_then(|index| session.inputs().get(index)))
            .collect();
        let plan = signature.outputs.iter().map(|port| {
            // An output that is also an input is passed through, not written.
            if signature.inputs.iter().any(|input| input.name == port.name) {
                return None;
            }
            let outlet =
                outlet(session.outputs(), &port.name).and_then(|index| session.outputs().get(index))?;
            let sizes = named_dimensions(outlet).map(|(size, name)| match u32::try_from(size) {
                Ok(size) => Some(Size::Fixed(size)),
                Err(_) => find_named(&inputs, name),
            });
            Some(Planned { element_type: port.datatype, sizes: sizes.collect::<Option<_>>()? })
        });
        Self(plan.collect())
    }

    /// Type, shape and length in bytes of an output. `None` if they are not known before the run,
    /// or if the output is empty.
    pub(crate) fn output(&self, position: usize, inputs: &[Tensor]) -> Option<(ElementType, Shape, usize)> {
        let Planned { element_type, sizes } = self.0.get(position)?.as_ref()?;
        let sizes = sizes.iter().map(|size| match size {
            Size::Fixed(size) => Some(*size),
            Size::Of { input, axis } => inputs.get(*input)?.shape().dimensions().get(*axis).copied(),
        });
        let shape = Shape::new(&sizes.collect::<Option<Vec<_>>>()?).ok()?;
        let len = usize::try_from(shape.element_count()).ok()?.checked_mul(element_type.size_bytes()?)?;
        (len > 0).then_some((*element_type, shape, len))
    }
}

fn named_dimensions(outlet: &Outlet) -> impl Iterator<Item = (i64, &str)> {
    let symbols = match outlet.dtype() {
        ValueType::Tensor { dimension_symbols, .. } => Some(dimension_symbols),
        _ => None,
    };
    let symbols = symbols.into_iter().flat_map(|symbols| symbols.iter().map(String::as_str));
    dimensions(outlet).iter().copied().zip(symbols)
}

fn find_named(inputs: &[Option<&Outlet>], name: &str) -> Option<Size> {
    if name.is_empty() {
        return None;
    }
    inputs.iter().enumerate().find_map(|(input, outlet)| {
        let axis = named_dimensions((*outlet)?).position(|(size, other)| size < 0 && other == name)?;
        Some(Size::Of { input, axis })
    })
}
