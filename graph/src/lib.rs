//! ONNX models as graphs of device operations: every step from the bytes of a file to a list of
//! operations for a device.
//!
//! The crate consists of pure functions on plain data, without access to devices, files or threads.
//! A model passes through them in this order:
//!
//! - [`OnnxModel::read`] checks a file and separates its weights ([`OnnxModel::without_weights`]
//!   omits them).
//! - [`OnnxModel::specialise`] fixes the shapes of the inputs, folds computations on shapes and
//!   constants, and returns a [`Graph`] of device operations ([`Op`]).
//! - [`Graph::fuse`] fuses neighbouring operations.
//! - [`OnnxModel::with_weights_as`] and [`Graph::in_storage`] optionally store floats in 16 bits.
//! - [`MemoryPlan`] assigns an address to every value.
//!
//! [`mod@reference`] interprets a graph on the CPU. The results of a device must agree with it.
//!
//! Files come from users. Any invalid content becomes an error that names the node and a remedy.
//! Sizes have limits, which are constants in this crate.
//!
//! ```
//! # fn example(file: bytes::Bytes) -> Result<(), weir_graph::GraphError> {
//! use weir_graph::{MemoryPlan, OnnxModel};
//! use weir_types::Shape;
//!
//! let model = OnnxModel::read(file)?;
//! println!("takes {:?}", model.signature().inputs);
//! let graph = model.specialise(&[Shape::new(&[1, 3, 224, 224]).unwrap()])?.fuse()?;
//! let plan = MemoryPlan::new(&graph);
//! println!("{} operations in {} bytes", graph.nodes.len(), plan.arena_bytes);
//! # Ok(())
//! # }
//! ```

mod error;
pub use error::GraphError;

mod onnx;

mod model;
pub use model::{
    FILE_BYTES_MAX, INLINE_BYTES_MAX, INLINE_INTEGER_BYTES_MAX, ModelWeight, NAME_BYTES_MAX, NODES_MAX,
    OPSETS, OnnxModel, PLACES_MAX, PORTS_MAX, Separated, WEIGHTS_MAX, WeightData, WeightFile,
};

mod tensor_type;
pub use tensor_type::{RANK_MAX, TensorType, TypeError, VALUE_BYTES_MAX, row_major};

mod ir;
pub use ir::{
    Activation, ArgReduce, Attention, BiasAxis, Binary, BlockLayout, CHANNELS_MULTIPLE, CheckError, Conv,
    Coordinates, Copy, CopyPart, CumSum, DIMS_MAX, Elementwise, ElementwiseProgram, Gather, GatherElements,
    Graph, GraphNode, GraphPort, GraphValue, HEAD_DIM_MAX, Heads, INPUTS_MAX, INSTRUCTIONS_MAX, ImageLayout,
    Instruction, LayerNorm, Lrn, Mask, MatMul, Matrix, Nearest, NumberType, Op, PoolKind, Pooling,
    ProgramError, Reduce, ReduceKind, Resize, ResizeMode, STACK_MAX, Scalar, Softmax, TopK, Unary, ValueId,
    ValueSource,
};

mod lower;
pub use lower::{Operator, operators};

mod tidy;

mod fuse;

mod storage;

mod layout;

mod plan;
pub use plan::{ALIGNMENT_BYTES, MemoryPlan, Packed, PlannedBlock, ValuePlace, pack};

pub mod reference;
