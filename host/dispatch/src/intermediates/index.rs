//! The index of an intermediate, and its encoding in messages between nodes.

use std::fmt;
use std::str::FromStr;
use weir_types::NodeId;

/// The prefix of an intermediate's region name. Between nodes, an intermediate replaces data in a
/// request like a region does, under a name that objects cannot have: this prefix, followed by the
/// index.
const REGION: &str = "intermediate/";

/// The region name for a requested output that is to be left on the node that computes it.
pub const LEFT_HERE: &str = REGION;

/// The globally unique identifier of an intermediate: neither node numbers nor a node's
/// intermediate numbers are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Index {
    /// The node that has the intermediate.
    pub node: NodeId,
    /// The intermediate's number on that node.
    pub number: u64,
}

/// The meaning of a region name between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// An intermediate.
    For(Index),
    /// An output that is to become an intermediate.
    ToBeLeft,
}

/// The meaning of a region name; `None` for an object.
pub fn region_of(name: &str) -> Option<Stands> {
    let index = name.strip_prefix(REGION)?;
    if index.is_empty() { Some(Stands::ToBeLeft) } else { index.parse().ok().map(Stands::For) }
}

impl Index {
    /// The region name of the intermediate.
    pub fn region(&self) -> String {
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
    fn region_name_is_either_an_index_or_an_object() {
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
