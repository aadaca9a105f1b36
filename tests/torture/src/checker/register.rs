//! Registers: names whose value is the value of the latest write.
//!
//! Nodes may answer with an earlier value until they have heard of a write
//! (`docs/concepts/cluster.md` and `objects.md`). A node has heard of a write that it acknowledged,
//! and of a write whose value it has returned. It must not return a value that was definitely
//! overwritten before such a write began. A name exists at all nodes as soon as its first write is
//! acknowledged.

use crate::history::{Effect, Micros, Operation};
use std::collections::BTreeMap;
use std::fmt;

/// Write to a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Node that received the write.
    pub node: usize,
    /// Start of the write.
    pub begin_us: Micros,
    /// End of the write; `None` if its outcome is unknown, so that it may take effect later.
    pub end_us: Option<Micros>,
    /// The value.
    pub value: String,
}

impl Write {
    /// The write of an operation, unless the operation took no effect.
    #[must_use]
    pub fn from_operation(operation: &Operation, value: &str) -> Option<Self> {
        let end_us = match operation.effect() {
            Effect::Never => return None,
            Effect::By(end_us) => Some(end_us),
            Effect::Possible => None,
        };
        Some(Self { node: operation.node, begin_us: operation.begin_us, end_us, value: value.to_owned() })
    }
}

/// Read of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Who answered.
    pub reader: Reader,
    /// Start of the read.
    pub begin_us: Micros,
    /// End of the read.
    pub end_us: Micros,
    /// The value; `None` if the name did not exist.
    pub value: Option<String>,
}

/// Source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A node, which knows the writes that it has acknowledged or returned.
    Node(usize),
    /// One of the nodes. It is unknown which one.
    AnyNode,
    /// A node after the cluster has healed, when all nodes have heard of all writes.
    Healed,
}

impl Reader {
    /// Whether the reader has what `node` knew before.
    fn has_knowledge_of(self, node: usize) -> bool {
        match self {
            Self::Node(reader) => reader == node,
            Self::AnyNode => false,
            Self::Healed => true,
        }
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::AnyNode => f.write_str("a node"),
            Self::Healed => f.write_str("the healed cluster"),
        }
    }
}

/// Writes and reads of one name.
#[derive(Debug, Clone, Default)]
pub struct Register {
    /// Writes, in any order.
    pub writes: Vec<Write>,
    /// Reads, in any order.
    pub reads: Vec<Read>,
}

/// A moment from which a node knows of writes that began at `floor_us` or later.
#[derive(Debug, Clone, Copy)]
struct Knowledge {
    from_us: Micros,
    node: usize,
    floor_us: Micros,
}

impl Register {
    /// Returns the reads that break a promise, with explanations.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        let knowledge = self.knowledge();
        let exists_from = self.exists_from();
        let mut found = Vec::new();
        for read in &self.reads {
            let Some(value) = &read.value else {
                if exists_from.is_some_and(|from| from < read.begin_us) {
                    found.push(format!(
                        "{} at {} said that the name does not exist; it exists since {} at the latest",
                        read.reader,
                        span(read.begin_us, read.end_us),
                        seconds(exists_from.unwrap_or_default())
                    ));
                }
                continue;
            };
            let possible = |write: &&Write| write.value == *value && write.begin_us < read.end_us;
            let candidates: Vec<&Write> = self.writes.iter().filter(possible).collect();
            if candidates.is_empty() {
                found.push(format!(
                    "{} at {} returned {value:?}, which nobody had written",
                    read.reader,
                    span(read.begin_us, read.end_us)
                ));
                continue;
            }
            let floor = knowledge
                .iter()
                .filter(|known| read.reader.has_knowledge_of(known.node))
                .filter(|known| known.from_us < read.begin_us)
                .max_by_key(|known| known.floor_us);
            let Some(floor) = floor else { continue };
            let is_current = |write: &&Write| write.end_us.is_none_or(|end| end >= floor.floor_us);
            if !candidates.iter().any(is_current) {
                found.push(format!(
                    "{} at {} returned {value:?}, which was overwritten: node {} knew at {} of a write that began at {}, after the last write of that value had ended",
                    read.reader,
                    span(read.begin_us, read.end_us),
                    floor.node,
                    seconds(floor.from_us),
                    seconds(floor.floor_us)
                ));
            }
        }
        found
    }

    /// Writes that each node knows of: those that it acknowledged, and those whose values it
    /// returned.
    fn knowledge(&self) -> Vec<Knowledge> {
        let mut first_begin: BTreeMap<&str, Micros> = BTreeMap::new();
        for write in &self.writes {
            let begin = first_begin.entry(&write.value).or_insert(write.begin_us);
            *begin = write.begin_us.min(*begin);
        }
        let acknowledged = self.writes.iter().filter_map(|write| {
            let from_us = write.end_us?;
            Some(Knowledge { from_us, node: write.node, floor_us: write.begin_us })
        });
        let shown = self.reads.iter().filter_map(|read| {
            let Reader::Node(node) = read.reader else { return None };
            let floor_us = *first_begin.get(read.value.as_deref()?)?;
            Some(Knowledge { from_us: read.end_us, node, floor_us })
        });
        acknowledged.chain(shown).collect()
    }

    /// The time from which the name must exist at all nodes.
    fn exists_from(&self) -> Option<Micros> {
        let written = self.writes.iter().filter_map(|write| write.end_us);
        let read = self.reads.iter().filter(|read| read.value.is_some()).map(|read| read.end_us);
        written.chain(read).min()
    }
}

/// A time, in seconds.
#[must_use]
pub fn seconds(time: Micros) -> String {
    format!("{:.3} s", time as f64 / 1e6)
}

/// A period, in seconds.
#[must_use]
pub fn span(begin: Micros, end: Micros) -> String {
    format!("{:.3}-{:.3} s", begin as f64 / 1e6, end as f64 / 1e6)
}

#[cfg(test)]
mod tests;
