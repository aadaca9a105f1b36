//! ONNX models as graphs of device operations: everything between the bytes of a file and a list of what a device runs.
//!
//! Plain functions of plain data: nothing here knows a device, a file or a thread. In the order a model meets them: [`Model::read`] checks a file and
//! takes its weights apart ([`Model::without_weights`] leaves them out). [`Model::specialise`] fixes the shapes of its inputs, works out all that
//! depends on shapes and constants only, and leaves a [`Graph`] of device operations ([`Op`]). [`Graph::fuse`] puts neighbours together, and
//! [`Model::with_weights_as`] and [`Graph::in_storage`] keep floats in 16 bits where that is wanted, and [`MemoryPlan`] says where every value lies. [`mod@reference`] runs any graph on the CPU, plainly: what a device computes must agree with it.
//!
//! Files come from users. Whatever is in them becomes an error that names the node, and what to do; sizes have limits, which are constants here.
//!
//! ```
//! # fn example(file: bytes::Bytes) -> Result<(), weir_graph::GraphError> {
//! use weir_graph::{MemoryPlan, Model};
//! use weir_types::Shape;
//!
//! let model = Model::read(file)?;
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
    FILE_BYTES_MAX, INLINE_BYTES_MAX, INLINE_INTEGER_BYTES_MAX, Model, NAME_BYTES_MAX, NODES_MAX, OPSETS,
    PLACES_MAX, PORTS_MAX, Separated, WEIGHTS_MAX, Weight, WeightData, WeightFile,
};

mod tensor_type;
pub use tensor_type::{RANK_MAX, TensorType, TypeError, VALUE_BYTES_MAX, row_major};

mod ir;
pub use ir::{
    Activation, ArgReduce, Attention, BiasAxis, Binary, CheckError, Conv, Coordinates, Copy, CumSum,
    DIMS_MAX, Elementwise, Gather, GatherElements, Graph, HEAD_DIM_MAX, Heads, INPUTS_MAX, INSTRUCTIONS_MAX,
    Instruction, Lane, LayerNorm, Layout, Lrn, Mask, MatMul, Matrix, Nearest, Node, Op, Part, Pool, PoolKind,
    Port, Program, ProgramError, Reduce, ReduceKind, Resize, ResizeMode, STACK_MAX, Scalar, Softmax, Source,
    TopK, Unary, Value, ValueId,
};

mod lower;
pub use lower::{Operator, operators};

mod tidy;

mod fuse;

mod storage;

mod plan;
pub use plan::{ALIGNMENT_BYTES, Block, MemoryPlan, Packed, Place, pack};

pub mod reference;
