//! Unification of dimension sizes: known sizes, and unknown sizes shared between tensors.

use crate::tensor_type::{Dimension, TensorType};
use crate::value::View;
use std::collections::HashMap;
use weir_types::ElementType;

/// A tensor type whose unknown sizes may be shared with other tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) datatype: ElementType,
    pub(crate) sizes: Vec<Size>,
}

/// The size of a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Fixed(u32),
    Unknown(usize),
}

impl Type {
    /// The shape, with `None` for unknown sizes.
    pub(crate) fn shape(&self) -> Vec<Option<u32>> {
        let size = |size: &Size| match size {
            Size::Fixed(size) => Some(*size),
            Size::Unknown(_) => None,
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
    pub(super) fn instance(&mut self, tensor_type: &TensorType) -> Type {
        let sizes = tensor_type.dimensions.iter().map(|dimension| self.size(dimension)).collect();
        Type { datatype: tensor_type.datatype, sizes }
    }

    pub(super) fn fresh(&mut self) -> Size {
        self.unknowns.push(KnownSize::Nothing);
        Size::Unknown(self.unknowns.len() - 1)
    }

    fn size(&mut self, dimension: &Dimension) -> Size {
        match dimension {
            Dimension::Fixed(size) => Size::Fixed(*size),
            Dimension::Any => self.fresh(),
            Dimension::Named(name) => {
                if let Some(known) = self.named.get(name) {
                    return Size::Unknown(*known);
                }
                let size = self.fresh();
                if let Size::Unknown(unknown) = size {
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
        let could_be = |(a, b): (&Size, &Size)| match (self.resolve(*a), self.resolve(*b)) {
            (Size::Fixed(a), Size::Fixed(b)) => a == b,
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

    fn unify_sizes(&mut self, a: Size, b: Size) -> bool {
        match (self.resolve(a), self.resolve(b)) {
            (Size::Fixed(a), Size::Fixed(b)) => a == b,
            (Size::Unknown(unknown), Size::Fixed(size)) | (Size::Fixed(size), Size::Unknown(unknown)) => {
                self.unknowns[unknown] = KnownSize::Is(size);
                true
            }
            (Size::Unknown(a), Size::Unknown(b)) => {
                if a != b {
                    self.unknowns[a.max(b)] = KnownSize::Same(a.min(b));
                }
                true
            }
        }
    }

    fn resolve(&self, mut size: Size) -> Size {
        loop {
            size = match size {
                Size::Fixed(_) => return size,
                Size::Unknown(unknown) => match self.unknowns[unknown] {
                    KnownSize::Nothing => return size,
                    KnownSize::Is(size) => return Size::Fixed(size),
                    KnownSize::Same(other) => Size::Unknown(other),
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
        let dimension = |size: Size| match size {
            Size::Fixed(size) => Dimension::Fixed(size),
            Size::Unknown(unknown) => self.name(unknown).map_or(Dimension::Any, Dimension::Named),
        };
        let dimensions = self.resolved(is).sizes.into_iter().map(dimension).collect();
        TensorType { datatype: is.datatype, dimensions }.to_string()
    }

    /// The name of an unknown size, or of an equal unknown.
    fn name(&self, unknown: usize) -> Option<String> {
        let mut names = self
            .names
            .iter()
            .filter(|(named, _)| self.resolve(Size::Unknown(**named)) == Size::Unknown(unknown));
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
    pub(crate) fn admit(&mut self, is: &Type, tensor: View<'_>) -> bool {
        let dimensions = tensor.shape.dimensions();
        is.datatype == tensor.datatype
            && is.sizes.len() == dimensions.len()
            && is.sizes.iter().zip(dimensions).all(|(size, has)| match size {
                Size::Fixed(size) => size == has,
                Size::Unknown(unknown) => {
                    self.0.get_mut(*unknown).is_none_or(|known| *known.get_or_insert(*has) == *has)
                }
            })
    }

    /// The type as text, with the sizes seen so far.
    pub(crate) fn show(&self, is: &Type) -> String {
        let dimension = |size: &Size| match size {
            Size::Fixed(size) => Dimension::Fixed(*size),
            Size::Unknown(unknown) => {
                self.0.get(*unknown).copied().flatten().map_or(Dimension::Any, Dimension::Fixed)
            }
        };
        TensorType { datatype: is.datatype, dimensions: is.sizes.iter().map(dimension).collect() }.to_string()
    }
}
