//! Errors of kernel graphs. Each error names the launch or buffer at fault.

use crate::expression::ExpressionError;
use crate::limits::{STEPS_MAX, UPLOAD_BYTES_MAX};
use crate::ptx::PtxError;
use crate::source::SourceError;
use weir_types::{ElementType, Shape};

/// Reason for rejecting an upload.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelGraphError {
    /// The upload exceeds [`UPLOAD_BYTES_MAX`].
    #[error("a kernel graph has at most {UPLOAD_BYTES_MAX} bytes with its sources, this one has {0}")]
    TooLarge(usize),
    /// The upload is not valid JSON, or does not match the format.
    #[error("the kernel graph cannot be read: {0}")]
    Malformed(String),
    /// A required list is empty.
    #[error("a kernel graph has at least one of its {0}")]
    None(&'static str),
    /// A list exceeds its limit.
    #[error("{place}: at most {max} {what}, not {found}")]
    TooMany {
        /// Part of the upload with the list.
        place: String,
        /// Kind of element.
        what: &'static str,
        /// Limit.
        max: usize,
        /// Actual count.
        found: usize,
    },
    /// A name has invalid characters, is empty or is too long.
    #[error("{name:?} cannot be the name of {what}: letters, digits, `_`, `-` and `.`, 64 at most")]
    Name {
        /// Kind of the named object.
        what: &'static str,
        /// Rejected name.
        name: String,
    },
    /// Two objects of the same kind share a name.
    #[error("there are two {what} called {name:?}")]
    Duplicate {
        /// Kind of the objects.
        what: &'static str,
        /// Shared name.
        name: String,
    },
    /// A source is neither CUDA C nor PTX.
    #[error("source {0:?} ends in neither .cu nor .ptx")]
    Ending(String),
    /// A source cannot be compiled.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A PTX source is rejected.
    #[error("{name}: {error}")]
    Ptx {
        /// Name of the source.
        name: String,
        /// Reason.
        error: PtxError,
    },
    /// A buffer has elements of variable size.
    #[error("buffer {0:?}: kernels cannot be given BYTES, whose elements differ in size")]
    Bytes(String),
    /// A dimension of an input is neither a number nor a name.
    #[error("input {input:?}: {dimension:?} is no dimension of an input: a number, or a name")]
    InputDimension {
        /// Name of the input.
        input: String,
        /// Rejected dimension.
        dimension: String,
    },
    /// The elements of a constant do not match its shape and type.
    #[error("constant {name:?}: {why}")]
    Constant {
        /// Name of the constant.
        name: String,
        /// Reason.
        why: String,
    },
    /// No source has the kernel.
    #[error("launch {launch:?}: there is no kernel {kernel:?}; the sources have {have}")]
    NoKernel {
        /// Name of the launch.
        launch: String,
        /// Missing kernel.
        kernel: String,
        /// Available kernels.
        have: String,
    },
    /// Two sources have a kernel of the same name.
    #[error("kernel {kernel:?} is in both {first} and {second}")]
    TwoKernels {
        /// Name of the kernel.
        kernel: String,
        /// First source.
        first: String,
        /// Second source.
        second: String,
    },
    /// The number of arguments differs from the number of the kernel's parameters.
    #[error("launch {launch:?}: kernel {kernel} takes {expected} arguments, not {found}")]
    ArgumentCount {
        /// Name of the launch.
        launch: String,
        /// Name of the kernel.
        kernel: String,
        /// Number of parameters.
        expected: usize,
        /// Number of arguments.
        found: usize,
    },
    /// The type of an argument does not match its parameter.
    #[error("launch {launch:?}: argument {position} is {given}, and the parameter takes {expected}")]
    ArgumentType {
        /// Name of the launch.
        launch: String,
        /// Position of the argument, starting at 1.
        position: usize,
        /// Type of the argument.
        given: &'static str,
        /// Types that the parameter accepts.
        expected: &'static str,
    },
    /// A launch names an unknown buffer.
    #[error("launch {launch:?}: there is no buffer {buffer:?}; there are {have}")]
    NoBuffer {
        /// Name of the launch.
        launch: String,
        /// Unknown buffer.
        buffer: String,
        /// Available buffers.
        have: String,
    },
    /// A launch writes a read-only buffer.
    #[error("launch {launch:?} writes {buffer:?}, which is {what}: only outputs and temporaries are written")]
    NotWritable {
        /// Name of the launch.
        launch: String,
        /// Name of the buffer.
        buffer: String,
        /// Kind of the buffer.
        what: &'static str,
    },
    /// Two launches write the same buffer, or one launch writes it twice.
    #[error("{buffer:?} is written by both {first:?} and {second:?}: use a different buffer for the second")]
    TwoWriters {
        /// Name of the buffer.
        buffer: String,
        /// First launch.
        first: String,
        /// Second launch; equal to the first if one launch writes the buffer twice.
        second: String,
    },
    /// No launch writes an output or a temporary.
    #[error("no launch writes {0:?}")]
    NeverWritten(String),
    /// No launch reads a buffer that is not an output.
    #[error("no launch reads {0:?}")]
    NeverRead(String),
    /// The launches have a dependency cycle.
    #[error("the launches wait for each other in a cycle: {0}")]
    Cycle(String),
    /// A feed names a buffer that the launch does not read or write, or buffers of different types.
    #[error("launch {launch:?}: repeat.feed: {why}")]
    Feed {
        /// Name of the launch.
        launch: String,
        /// Reason.
        why: String,
    },
    /// A grid or block has too few or too many dimensions.
    #[error("launch {launch:?}: {what} has 1 to 3 numbers, not {found}")]
    Dimensions {
        /// Name of the launch.
        launch: String,
        /// `grid` or `block`.
        what: &'static str,
        /// Number of dimensions.
        found: usize,
    },
    /// A size expression has no value for any inputs.
    #[error("{place}: {error}")]
    Expression {
        /// Launch or buffer with the expression.
        place: String,
        /// Reason.
        error: ExpressionError,
    },
    /// The graph cannot run with any inputs.
    #[error(transparent)]
    Plan(#[from] RunPlanError),
}

/// Reason why a graph cannot run with inputs of given shapes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunPlanError {
    /// The number of inputs is wrong.
    #[error("the graph has {expected} inputs, and {found} are given")]
    Inputs {
        /// Number of inputs of the graph.
        expected: usize,
        /// Number of given inputs.
        found: usize,
    },
    /// The shape of an input does not match the graph.
    #[error("input {input:?} is {expected}, and is given in shape {found}")]
    InputShape {
        /// Name of the input.
        input: String,
        /// Type and shape in the graph.
        expected: String,
        /// Given shape.
        found: Shape,
    },
    /// One dimension name is bound to two sizes.
    #[error("dimension {name:?} is {first}, and {second} in input {input:?}")]
    Contradiction {
        /// Name of the dimension.
        name: String,
        /// Size in an earlier input.
        first: u32,
        /// Size in this input.
        second: u32,
        /// Name of the input.
        input: String,
    },
    /// A size expression has no value.
    #[error("{place}: {error}")]
    Expression {
        /// Launch or buffer with the expression.
        place: String,
        /// Reason.
        error: ExpressionError,
    },
    /// A number is out of bounds.
    #[error("{place}: {what} is {value}, and may be {min} to {max}")]
    OutOfBounds {
        /// Launch or buffer with the number.
        place: String,
        /// Meaning of the number.
        what: &'static str,
        /// Value.
        value: i128,
        /// Minimum.
        min: i128,
        /// Maximum.
        max: i128,
    },
    /// The size of a buffer overflows.
    #[error("buffer {buffer:?}: {dimensions:?} of {datatype} is too large")]
    BufferSize {
        /// Name of the buffer.
        buffer: String,
        /// Dimensions.
        dimensions: Vec<i128>,
        /// Element type.
        datatype: ElementType,
    },
    /// The two buffers of a feed differ in size.
    #[error("launch {launch:?}: repeat.feed: {from:?} and {to:?} differ in size")]
    FeedSize {
        /// Name of the launch.
        launch: String,
        /// Written buffer.
        from: String,
        /// Read buffer.
        to: String,
    },
    /// A run exceeds [`STEPS_MAX`] launches and fills.
    #[error("a run has at most {STEPS_MAX} launches, repeated ones and fillings with zeroes included")]
    TooManySteps,
    /// The buffers exceed the memory limit of a run.
    #[error(
        "the buffers of a run take {needed_bytes} bytes, and may take {bytes_max} (kernel_graphs.memory_bytes_max)"
    )]
    Memory {
        /// Required bytes.
        needed_bytes: u64,
        /// Limit in bytes.
        bytes_max: u64,
    },
}
