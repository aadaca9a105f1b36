//! Unification of dimension sizes: known sizes, and unknown sizes shared between tensors.

use crate::tensor_type::{DimensionSpec, TensorSpec};
use crate::value::TensorView;
use std::collections::HashMap;
use weir_types::ElementType;

/// A tensor type whose unknown sizes may be shared with other tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) datatype: ElementType,
    pub(crate) sizes: Vec<DimensionSize>,
}

/// The size of a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DimensionSize {
    Fixed(u32),
    Unknown(usize),
}

impl Type {
    /// The shape, with `None` for unknown sizes.
    pub(crate) fn shape(&self) -> Vec<Option<u32>> {
        let size = |size: &DimensionSize| match size {
            DimensionSize::Fixed(size) => Some(*size),
            DimensionSize::Unknown(_) => None,
        };
        self.sizes.iter().map(size).collect()
    }

    /// Number of elements, if known.
    pub(crate) fn len(&self) -> Option<u64> {
        let sizes = self.shape().into_iter().map(|size| size.map(u64::from));
        sizes.reduce(|a, b| a?.checked_mul(b?)).unwrap_or(Some(1))
    }
}

/// Constraints on unknown sizes, collected while a workflow is checked.
#[derive(Debug, Default)]
pub(super) struct Unifier {
    unknowns: Vec<KnownSize>,
    named: HashMap<String, usize>,
    names: HashMap<usize, String>,
}

#[derive(Debug, Clone, Copy)]
enum KnownSize {
    Nothing,
    Is(u32),
    /// Equal to the unknown with this lower index.
    Same(usize),
}

impl Unifier {
    /// Instantiates a type: a named size maps to its unknown, and each unconstrained size gets a
    /// fresh unknown.
    pub(super) fn instance(&mut self, tensor_type: &TensorSpec) -> Type {
        let sizes = tensor_type.dimensions.iter().map(|dimension| self.size(dimension)).collect();
        Type { datatype: tensor_type.datatype, sizes }
    }

    pub(super) fn fresh(&mut self) -> DimensionSize {
        self.unknowns.push(KnownSize::Nothing);
        DimensionSize::Unknown(self.unknowns.len() - 1)
    }

    fn size(&mut self, dimension: &DimensionSpec) -> DimensionSize {
        match dimension {
            DimensionSpec::Fixed(size) => DimensionSize::Fixed(*size),
            DimensionSpec::Any => self.fresh(),
            DimensionSpec::Named(name) => {
                if let Some(known) = self.named.get(name) {
                    return DimensionSize::Unknown(*known);
                }
                let size = self.fresh();
                if let DimensionSize::Unknown(unknown) = size {
                    self.named.insert(name.clone(), unknown);
                    self.names.insert(unknown, name.clone());
                }
                size
            }
        }
    }

    /// Unifies two types. Returns false if they are incompatible.
    pub(super) fn unify(&mut self, a: &Type, b: &Type) -> bool {
        a.datatype == b.datatype
            && a.sizes.len() == b.sizes.len()
            && a.sizes.iter().zip(&b.sizes).all(|(a, b)| self.unify_sizes(*a, *b))
    }

    /// Whether two types are compatible, without unifying them.
    pub(super) fn could_be(&self, a: &Type, b: &Type) -> bool {
        let could_be = |(a, b): (&DimensionSize, &DimensionSize)| match (self.resolve(*a), self.resolve(*b)) {
            (DimensionSize::Fixed(a), DimensionSize::Fixed(b)) => a == b,
            _ => true,
        };
        a.datatype == b.datatype
            && a.sizes.len() == b.sizes.len()
            && a.sizes.iter().zip(&b.sizes).all(could_be)
    }

    /// The type of a value that has one of the two types.
    pub(super) fn either(&mut self, a: &Type, b: &Type) -> Type {
        let sizes = a
            .sizes
            .iter()
            .zip(&b.sizes)
            .map(|(a, b)| if self.resolve(*a) == self.resolve(*b) { *a } else { self.fresh() });
        Type { datatype: a.datatype, sizes: sizes.collect() }
    }

    fn unify_sizes(&mut self, a: DimensionSize, b: DimensionSize) -> bool {
        match (self.resolve(a), self.resolve(b)) {
            (DimensionSize::Fixed(a), DimensionSize::Fixed(b)) => a == b,
            (DimensionSize::Unknown(unknown), DimensionSize::Fixed(size))
            | (DimensionSize::Fixed(size), DimensionSize::Unknown(unknown)) => {
                self.unknowns[unknown] = KnownSize::Is(size);
                true
            }
            (DimensionSize::Unknown(a), DimensionSize::Unknown(b)) => {
                if a != b {
                    self.unknowns[a.max(b)] = KnownSize::Same(a.min(b));
                }
                true
            }
        }
    }

    fn resolve(&self, mut size: DimensionSize) -> DimensionSize {
        loop {
            size = match size {
                DimensionSize::Fixed(_) => return size,
                DimensionSize::Unknown(unknown) => match self.unknowns[unknown] {
                    KnownSize::Nothing => return size,
                    KnownSize::Is(size) => return DimensionSize::Fixed(size),
                    KnownSize::Same(other) => DimensionSize::Unknown(other),
                },
            }
        }
    }

    /// A type with the currently known sizes.
    pub(super) fn resolved(&self, is: &Type) -> Type {
        Type { datatype: is.datatype, sizes: is.sizes.iter().map(|size| self.resolve(*size)).collect() }
    }

    /// The resolved type as text.
    pub(super) fn show(&self, is: &Type) -> String {
        let dimension = |size: DimensionSize| match size {
            DimensionSize::Fixed(size) => DimensionSpec::Fixed(size),
            DimensionSize::Unknown(unknown) => {
                self.name(unknown).map_or(DimensionSpec::Any, DimensionSpec::Named)
            }
        };
        let dimensions = self.resolved(is).sizes.into_iter().map(dimension).collect();
        TensorSpec { datatype: is.datatype, dimensions }.to_string()
    }

    /// The name of an unknown size, or of an equal unknown.
    fn name(&self, unknown: usize) -> Option<String> {
        let mut names = self.names.iter().filter(|(named, _)| {
            self.resolve(DimensionSize::Unknown(**named)) == DimensionSize::Unknown(unknown)
        });
        let first = names.next()?.1;
        Some(names.map(|(_, name)| name).fold(first, std::cmp::min).clone())
    }

    pub(super) fn len(&self) -> usize {
        self.unknowns.len()
    }
}

/// The values of unknown sizes in one run.
#[derive(Debug, Clone)]
pub(crate) struct Sizes(Vec<Option<u32>>);

impl Sizes {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![None; len])
    }

    /// Whether a tensor matches a type and the sizes seen so far. Records the tensor's sizes.
    pub(crate) fn admit(&mut self, is: &Type, tensor: TensorView<'_>) -> bool {
        let dimensions = tensor.shape.dimensions();
        is.datatype == tensor.datatype
            && is.sizes.len() == dimensions.len()
            && is.sizes.iter().zip(dimensions).all(|(size, has)| match size {
                DimensionSize::Fixed(size) => size == has,
                DimensionSize::Unknown(unknown) => {
                    self.0.get_mut(*unknown).is_none_or(|known| *known.get_or_insert(*has) == *has)
                }
            })
    }

    /// The type as text, with the sizes seen so far.
    pub(crate) fn show(&self, is: &Type) -> String {
        let dimension = |size: &DimensionSize| match size {
            DimensionSize::Fixed(size) => DimensionSpec::Fixed(*size),
            DimensionSize::Unknown(unknown) => {
                self.0.get(*unknown).copied().flatten().map_or(DimensionSpec::Any, DimensionSpec::Fixed)
            }
        };
        TensorSpec { datatype: is.datatype, dimensions: is.sizes.iter().map(dimension).collect() }.to_string()
    }
}
