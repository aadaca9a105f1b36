//! Sizes and offsets of buffers.

use crate::bounds::bounded;
use crate::buffers::{BufferDefinition, Role};
use crate::check::{Checked, KernelGraph};
use crate::error::RunPlanError;
use crate::limits::STEPS_MAX;
use std::collections::BTreeMap;
use weir_graph::{PlannedBlock, pack};
use weir_types::Shape;

/// Repetition of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchRepetition {
    /// Index of the launch in the topological order.
    pub(super) at: usize,
    /// Index of the repetition, starting at 0.
    pub(super) turn: i128,
    pub(super) times: i128,
}

/// Binds the dimension names of the inputs to the sizes of `shapes`.
pub(super) fn dimensions(
    graph: &KernelGraph,
    shapes: &[Shape],
) -> Result<BTreeMap<String, u32>, RunPlanError> {
    let inputs = &graph.document().inputs;
    if inputs.len() != shapes.len() {
        return Err(RunPlanError::Inputs { expected: inputs.len(), found: shapes.len() });
    }
    let mut dimensions = BTreeMap::new();
    for (input, shape) in inputs.iter().zip(shapes) {
        let wrong = || {
            let sizes: Vec<_> = input.shape.iter().map(ToString::to_string).collect();
            let expected = format!("{}[{}]", input.datatype, sizes.join(", "));
            RunPlanError::InputShape { input: input.name.clone(), expected, found: shape.clone() }
        };
        if input.shape.len() != shape.dimensions().len() {
            return Err(wrong());
        }
        for (size, found) in input.shape.iter().zip(shape.dimensions()) {
            if let Some(name) = size.as_dimension() {
                let first = *dimensions.entry(name.to_owned()).or_insert(*found);
                if first != *found {
                    let name = name.to_owned();
                    let input = input.name.clone();
                    return Err(RunPlanError::Contradiction { name, first, second: *found, input });
                }
            } else if size.as_number() != Some(i128::from(*found)) {
                return Err(wrong());
            }
        }
    }
    Ok(dimensions)
}

/// Returns the number of repetitions of a launch.
pub(super) fn times(checked: &Checked, dimensions: &BTreeMap<String, u32>) -> Result<i128, RunPlanError> {
    let Some(repeat) = &checked.launch.repeat else { return Ok(1) };
    let place = || format!("launch {:?}", checked.launch.name);
    bounded(&place, "repeat.times", &repeat.times, dimensions, 1, STEPS_MAX as i128)
}

/// Shape and size in bytes of each buffer.
pub(super) struct BufferSizes(Vec<(Shape, u64)>);

impl BufferSizes {
    pub(super) fn new(
        graph: &KernelGraph,
        dimensions: &BTreeMap<String, u32>,
        bytes_max: u64,
    ) -> Result<Self, RunPlanError> {
        let size = |buffer: &BufferDefinition| {
            let place = || format!("buffer {:?}", buffer.name);
            let sizes = buffer
                .shape
                .iter()
                .map(|size| bounded(&place, "a dimension", size, dimensions, 0, i128::from(u32::MAX)));
            let sizes: Vec<i128> = sizes.collect::<Result<_, _>>()?;
            let shape: Vec<u32> = sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect();
            let too_large = || RunPlanError::BufferSize {
                buffer: buffer.name.clone(),
                dimensions: sizes.clone(),
                datatype: buffer.datatype,
            };
            let shape = Shape::new(&shape).map_err(|_| too_large())?;
            let bytes = shape.element_count().checked_mul(buffer.element_bytes).ok_or_else(too_large)?;
            if bytes > bytes_max {
                return Err(RunPlanError::Memory { needed_bytes: bytes, bytes_max });
            }
            Ok((shape, bytes))
        };
        Ok(Self(graph.buffers.all.iter().map(size).collect::<Result<_, _>>()?))
    }

    pub(super) fn shape(&self, number: usize) -> Shape {
        self.0.get(number).map(|(shape, _)| shape.clone()).unwrap_or_default()
    }

    pub(super) fn bytes(&self, number: usize) -> u64 {
        self.0.get(number).map_or(0, |(_, bytes)| *bytes)
    }
}

/// Offsets of all buffers in the arena.
pub(super) struct ArenaOffsets {
    /// Size of the arena in bytes.
    pub(super) bytes: u64,
    offsets: Vec<u64>,
    /// Second regions of buffers with feeds, by launch and buffer. Repetitions alternate between
    /// the two regions.
    others: BTreeMap<(usize, usize), u64>,
}

impl ArenaOffsets {
    pub(super) fn new(
        graph: &KernelGraph,
        sizes: &BufferSizes,
        dimensions: &BTreeMap<String, u32>,
    ) -> Result<Self, RunPlanError> {
        let end = graph.launches.len();
        let block = |number: usize, first, last| PlannedBlock {
            bytes: usize::try_from(sizes.bytes(number)).unwrap_or(usize::MAX),
            first,
            last,
        };
        let mut blocks = Vec::new();
        let mut of = Vec::new();
        for (number, buffer) in graph.buffers.all.iter().enumerate() {
            let written = graph.launches.iter().position(|launch| launch.writes.contains(&number));
            let read = graph.launches.iter().rposition(|launch| launch.reads.contains(&number));
            let (first, last) = match buffer.role {
                Role::Input => (0, read.unwrap_or(0)),
                Role::Output => (written.unwrap_or(0), end),
                Role::Temporary => (written.unwrap_or(0), read.unwrap_or(end)),
                Role::Constant(_) => continue,
            };
            of.push((None, number));
            blocks.push(block(number, first, last));
        }
        for (at, launch) in graph.launches.iter().enumerate() {
            if times(launch, dimensions)? < 2 {
                continue;
            }
            for (from, to) in &launch.feed {
                if sizes.bytes(*from) != sizes.bytes(*to) {
                    let name = |number: usize| {
                        graph.buffers.all.get(number).map(|buffer| buffer.name.clone()).unwrap_or_default()
                    };
                    let launch = launch.launch.name.clone();
                    return Err(RunPlanError::FeedSize { launch, from: name(*from), to: name(*to) });
                }
                of.push((Some(at), *from));
                blocks.push(block(*from, at, at));
            }
        }
        let packed = pack(&blocks);
        let mut places = Self {
            bytes: packed.bytes as u64,
            offsets: vec![0; graph.buffers.all.len()],
            others: BTreeMap::new(),
        };
        for ((launch, number), offset) in of.into_iter().zip(packed.offsets) {
            match (launch, places.offsets.get_mut(number)) {
                (Some(launch), _) => _ = places.others.insert((launch, number), offset as u64),
                (None, Some(place)) => *place = offset as u64,
                (None, None) => {}
            }
        }
        Ok(places)
    }

    pub(super) fn offset(&self, number: usize) -> u64 {
        self.offsets.get(number).copied().unwrap_or_default()
    }

    /// Returns the offset at which a repetition writes a buffer. The last repetition writes to the
    /// buffer's own region.
    pub(super) fn written(
        &self,
        number: usize,
        LaunchRepetition { at, turn, times }: LaunchRepetition,
    ) -> u64 {
        let own = self.offset(number);
        let is_other = (times - 1 - turn) % 2 == 1;
        if is_other { self.others.get(&(at, number)).copied().unwrap_or(own) } else { own }
    }

    /// Returns the offset at which a repetition reads a buffer. After the first repetition, a fed
    /// buffer is read from the region that the previous repetition wrote.
    pub(super) fn read(&self, checked: &Checked, number: usize, turn: LaunchRepetition) -> u64 {
        let from = checked.feed.iter().find(|(_, to)| *to == number);
        match from {
            Some((from, _)) if turn.turn > 0 => {
                self.written(*from, LaunchRepetition { turn: turn.turn - 1, ..turn })
            }
            _ => self.offset(number),
        }
    }
}
