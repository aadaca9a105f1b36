//! What can be wrong with a kernel graph, each with the launch or buffer that it is about.

use crate::document::UPLOAD_BYTES_MAX;
use crate::expression::ExpressionError;
use crate::plan::STEPS_MAX;
use crate::ptx::PtxError;
use crate::source::SourceError;
use weir_types::{ElementType, Shape};

/// Why an upload is no kernel graph.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// It is too large.
    #[error("a kernel graph has at most {UPLOAD_BYTES_MAX} bytes with its sources, this one has {0}")]
    TooLarge(usize),
    /// It is no JSON of the right shape.
    #[error("the kernel graph cannot be read: {0}")]
    Malformed(String),
    /// There is nothing of something.
    #[error("a kernel graph has at least one of its {0}")]
    None(&'static str),
    /// There is too much of something.
    #[error("{place}: at most {max} {what}, not {found}")]
    TooMany {
        /// Where.
        place: String,
        /// Of what.
        what: &'static str,
        /// How many there may be.
        max: usize,
        /// How many there are.
        found: usize,
    },
    /// Something is called what nothing can be called.
    #[error("{name:?} cannot be the name of {what}: letters, digits, `_`, `-` and `.`, 64 at most")]
    Name {
        /// What it is.
        what: &'static str,
        /// What it is called.
        name: String,
    },
    /// Two things have one name.
    #[error("there are two {what} called {name:?}")]
    Duplicate {
        /// What they are.
        what: &'static str,
        /// What they are called.
        name: String,
    },
    /// A source is neither CUDA C nor PTX.
    #[error("source {0:?} ends in neither .cu nor .ptx")]
    Ending(String),
    /// A source cannot be compiled.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// PTX is not taken.
    #[error("{name}: {error}")]
    Ptx {
        /// The source.
        name: String,
        /// Why.
        error: PtxError,
    },
    /// A buffer has elements of no fixed size.
    #[error("buffer {0:?}: kernels cannot be given BYTES, whose elements differ in size")]
    Bytes(String),
    /// A dimension of an input is neither a number nor a name.
    #[error("input {input:?}: {dimension:?} is no dimension of an input: a number, or a name")]
    InputDimension {
        /// The input.
        input: String,
        /// The dimension.
        dimension: String,
    },
    /// The elements of a constant are not those of its shape and type.
    #[error("constant {name:?}: {why}")]
    Constant {
        /// The constant.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// No source has the kernel.
    #[error("launch {launch:?}: there is no kernel {kernel:?}; the sources have {have}")]
    NoKernel {
        /// The launch.
        launch: String,
        /// What it names.
        kernel: String,
        /// Those that there are.
        have: String,
    },
    /// Two sources have a kernel of that name.
    #[error("kernel {kernel:?} is in both {first} and {second}")]
    TwoKernels {
        /// The kernel.
        kernel: String,
        /// A source.
        first: String,
        /// Another.
        second: String,
    },
    /// A launch gives more or fewer arguments than the kernel has parameters.
    #[error("launch {launch:?}: kernel {kernel} takes {expected} arguments, not {found}")]
    ArgumentCount {
        /// The launch.
        launch: String,
        /// The kernel.
        kernel: String,
        /// Its parameters.
        expected: usize,
        /// The arguments.
        found: usize,
    },
    /// An argument is not what the parameter takes.
    #[error("launch {launch:?}: argument {position} is {given}, and the parameter takes {expected}")]
    ArgumentType {
        /// The launch.
        launch: String,
        /// Which, counted from 1.
        position: usize,
        /// What is given.
        given: &'static str,
        /// What is taken.
        expected: &'static str,
    },
    /// A launch names a buffer that is not there.
    #[error("launch {launch:?}: there is no buffer {buffer:?}; there are {have}")]
    NoBuffer {
        /// The launch.
        launch: String,
        /// What it names.
        buffer: String,
        /// Those that there are.
        have: String,
    },
    /// A launch writes what is not its to write.
    #[error("launch {launch:?} writes {buffer:?}, which is {what}: only outputs and temporaries are written")]
    NotWritable {
        /// The launch.
        launch: String,
        /// The buffer.
        buffer: String,
        /// What it is.
        what: &'static str,
    },
    /// Two launches write one buffer.
    #[error("{buffer:?} is written by both {first:?} and {second:?}: give the second a buffer of its own")]
    TwoWriters {
        /// The buffer.
        buffer: String,
        /// A launch.
        first: String,
        /// Another, or the same.
        second: String,
    },
    /// Nobody writes a buffer that somebody needs.
    #[error("no launch writes {0:?}")]
    NeverWritten(String),
    /// Nobody reads a buffer.
    #[error("no launch reads {0:?}")]
    NeverRead(String),
    /// Launches wait for each other.
    #[error("the launches wait for each other in a cycle: {0}")]
    Cycle(String),
    /// What is fed to the next launch is not what it reads or writes.
    #[error("launch {launch:?}: repeat.feed: {why}")]
    Feed {
        /// The launch.
        launch: String,
        /// What is wrong.
        why: String,
    },
    /// A launch has too few or too many dimensions.
    #[error("launch {launch:?}: {what} has 1 to 3 numbers, not {found}")]
    Dimensions {
        /// The launch.
        launch: String,
        /// Its grid or block.
        what: &'static str,
        /// How many there are.
        found: usize,
    },
    /// A size has no value, whatever the inputs are.
    #[error("{place}: {error}")]
    Expression {
        /// Where.
        place: String,
        /// Why.
        error: ExpressionError,
    },
    /// It can never run.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Why a graph cannot run with inputs of given shapes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// There are not as many inputs as the graph has.
    #[error("the graph has {expected} inputs, and {found} are given")]
    Inputs {
        /// How many it has.
        expected: usize,
        /// How many are given.
        found: usize,
    },
    /// An input has another shape than the graph says.
    #[error("input {input:?} is {expected}, and is given in shape {found}")]
    InputShape {
        /// The input.
        input: String,
        /// What the graph says.
        expected: String,
        /// What is given.
        found: Shape,
    },
    /// One name stands for two sizes.
    #[error("dimension {name:?} is {first}, and {second} in input {input:?}")]
    Contradiction {
        /// The dimension.
        name: String,
        /// What it is in an input before.
        first: u32,
        /// What it is here.
        second: u32,
        /// The input.
        input: String,
    },
    /// A size has no value.
    #[error("{place}: {error}")]
    Expression {
        /// Where.
        place: String,
        /// Why.
        error: ExpressionError,
    },
    /// A number is not within its bounds.
    #[error("{place}: {what} is {value}, and may be {min} to {max}")]
    OutOfBounds {
        /// Where.
        place: String,
        /// Which number.
        what: &'static str,
        /// What it is.
        value: i64,
        /// What it is at least.
        min: i64,
        /// What it is at most.
        max: i64,
    },
    /// A buffer has more elements than there can be.
    #[error("buffer {buffer:?}: {dimensions:?} of {datatype} is too large")]
    BufferSize {
        /// The buffer.
        buffer: String,
        /// Its dimensions.
        dimensions: Vec<i64>,
        /// Its elements.
        datatype: ElementType,
    },
    /// The two buffers of a feed differ.
    #[error("launch {launch:?}: repeat.feed: {from:?} and {to:?} differ in size")]
    FeedSize {
        /// The launch.
        launch: String,
        /// What is written.
        from: String,
        /// What is read.
        to: String,
    },
    /// There are too many launches.
    #[error("a run has at most {STEPS_MAX} launches, repeated ones and fillings with zeroes included")]
    TooManySteps,
    /// The buffers take more memory than they may.
    #[error(
        "the buffers of a run take {needed_bytes} bytes, and may take {bytes_max} (kernel_graphs.memory_bytes_max)"
    )]
    Memory {
        /// What they take.
        needed_bytes: u64,
        /// What they may take.
        bytes_max: u64,
    },
}
