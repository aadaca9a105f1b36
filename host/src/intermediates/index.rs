//! What an intermediate is known by.

use std::fmt;
use std::str::FromStr;
use weir_types::NodeId;

/// Between nodes, an intermediate stands in the place of data as a region does: by a name that no object can have. Behind this comes its
/// index.
const REGION: &str = "intermediate/";

/// In the place of an output that is wanted: it is to be left where it is made.
pub(crate) const LEFT_HERE: &str = REGION;

/// What an intermediate is known by, on all nodes: numbers of nodes are not used twice, and a node's numbers of intermediates are not either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Index {
    /// The node that has it.
    pub(crate) node: NodeId,
    /// Its number there.
    pub(crate) number: u64,
}

/// What a region between nodes stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stands {
    /// For an intermediate.
    For(Index),
    /// For one to be.
    ToBeLeft,
}

/// What the name of a region stands for; none for an object.
pub(crate) fn region_of(name: &str) -> Option<Stands> {
    let index = name.strip_prefix(REGION)?;
    if index.is_empty() { Some(Stands::ToBeLeft) } else { index.parse().ok().map(Stands::For) }
}

impl Index {
    /// Its name as a region.
    pub(crate) fn region(&self) -> String {
        format!("{REGION}{self}")
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.node.0, self.number)
    }
}

impl FromStr for Index {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (node, number) = text.split_once('-').ok_or(())?;
        Ok(Self { node: NodeId(node.parse().map_err(drop)?), number: number.parse().map_err(drop)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::Name;

    #[test]
    fn a_region_is_an_index_or_an_object_and_never_both() {
        let index = Index { node: NodeId(3), number: 17 };
        assert_eq!(index.region(), "intermediate/3-17");
        assert_eq!(region_of(&index.region()), Some(Stands::For(index)));
        assert_eq!(region_of(LEFT_HERE), Some(Stands::ToBeLeft));
        for other in ["3-17", "intermediate", "intermediate/3", "intermediate/-3-1", "intermediate/3-17 "] {
            assert_eq!(region_of(other), None, "{other}");
        }
        assert!(Name::new(&index.region()).is_err() && Name::new(LEFT_HERE).is_err());
    }
}
