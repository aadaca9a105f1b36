//! Test cases of single operations, at the sizes of real networks.

use weir_graph::{
    Activation, ArgReduce, Attention, BiasAxis, Binary, BlockLayout, Conv, Copy, CopyPart, CumSum,
    Elementwise, ElementwiseProgram, Gather, Graph, GraphNode, GraphPort, GraphValue, Heads, ImageLayout,
    Instruction, LayerNorm, Lrn, MatMul, Matrix, NumberType, Op, PoolKind, Pooling, Reduce, ReduceKind,
    Softmax, TensorType, TopK, TypeError, ValueId, ValueSource, row_major,
};
use weir_types::ElementType::{self, Fp32, Int64};

/// Operation with the dimensions of its operands and outputs.
pub(super) struct OperationCase {
    pub(super) name: &'static str,
    op: Op,
    inputs: Vec<Vec<usize>>,
    /// Operand whose elements are indices, and the exclusive upper bound of the indices.
    indices: Option<(usize, usize)>,
    outputs: Vec<(Vec<usize>, Option<ElementType>)>,
    /// Number of terms that are summed for one element of the output.
    pub(super) terms: usize,
}

impl OperationCase {
    fn new(name: &'static str, op: Op, inputs: &[&[usize]], output: &[usize]) -> Self {
        let inputs = inputs.iter().map(|dims| dims.to_vec()).collect();
        Self { name, op, inputs, indices: None, outputs: vec![(output.to_vec(), None)], terms: 1 }
    }

    /// Returns whether the operation is a matrix product.
    pub(super) fn is_product(&self) -> bool {
        matches!(self.op, Op::MatMul(_))
    }

    /// Returns whether the operation is a chain of elementwise operations.
    pub(super) fn is_elementwise(&self) -> bool {
        matches!(self.op, Op::Elementwise(_))
    }

    fn summing(self, terms: usize) -> Self {
        Self { terms, ..self }
    }

    /// Builds the graph of this operation on floats of a type.
    pub(super) fn graph(&self, float: ElementType) -> Result<Graph, TypeError> {
        let mut graph = Graph::default();
        let add = |graph: &mut Graph, name: String, tensor: TensorType, source: ValueSource| {
            let id = ValueId(u32::try_from(graph.values.len()).unwrap_or(u32::MAX));
            graph.values.push(GraphValue { name, tensor, source });
            id
        };
        let mut node = GraphNode {
            name: self.name.to_owned(),
            op: self.op.clone(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        for (place, dims) in self.inputs.iter().enumerate() {
            let is_index = self.indices.is_some_and(|(of, _)| of == place);
            let tensor = TensorType::new(if is_index { Int64 } else { float }, dims.clone())?;
            let id = add(&mut graph, format!("in{place}"), tensor, ValueSource::Input);
            graph.inputs.push(GraphPort { name: format!("in{place}"), value: id });
            node.inputs.push(Some(id));
        }
        for ((dims, element_type), place) in self.outputs.iter().zip(0_u32..) {
            let tensor = TensorType::new(element_type.unwrap_or(float), dims.clone())?;
            let id =
                add(&mut graph, format!("out{place}"), tensor, ValueSource::Node { node: 0, output: place });
            graph.outputs.push(GraphPort { name: format!("out{place}"), value: id });
            node.outputs.push(Some(id));
        }
        graph.nodes.push(node);
        Ok(graph)
    }

    /// Returns an element of an operand: a number between -1 and 1, or an index.
    pub(super) fn element(&self, operand: usize, at: usize) -> f32 {
        // The finalizer of MurmurHash3: neighbours must not be correlated, or sums of their products
        // are larger than those of independent numbers.
        let mut hash = at as u64 ^ (operand as u64 + 1) << 40;
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ hash >> 33).wrapping_mul(factor);
        }
        let hash = hash >> 40;
        match self.indices {
            Some((of, count)) if of == operand => (hash % count as u64) as f32,
            _ => hash as f32 / (1 << 23) as f32 - 1.0,
        }
    }
}

fn conv(groups: usize, stride: usize, pad: usize) -> Op {
    Op::Conv(convolution(groups, stride, pad))
}

fn conv_channels_last(stride: usize, pad: usize) -> Op {
    let layout = ImageLayout::ChannelsLast;
    Op::Conv(Conv { images: layout, filters: layout, ..convolution(1, stride, pad) })
}

fn convolution(groups: usize, stride: usize, pad: usize) -> Conv {
    Conv {
        groups,
        strides: [stride; 2],
        pads_begin: [pad; 2],
        pads_end: [pad; 2],
        dilations: [1; 2],
        activation: Some(Activation::Relu),
        images: ImageLayout::ChannelsFirst,
        filters: ImageLayout::ChannelsFirst,
    }
}

fn pool(kind: PoolKind) -> Op {
    let kernel = [3; 2];
    let strides = [2; 2];
    let pads = [1; 2];
    let layout = ImageLayout::ChannelsFirst;
    Op::Pool(Pooling { kind, kernel, strides, pads_begin: pads, pads_end: pads, dilations: [1; 2], layout })
}

fn matmul(batch: &[usize], [m, n, k]: [usize; 3], transposed: bool) -> Op {
    let strides = |size: usize| row_major(batch).iter().map(|stride| stride * size).collect();
    let matrix = |rows: usize, columns: usize, transposed: bool| Matrix {
        offset: 0,
        batch_strides: strides(rows * columns),
        row_stride: if transposed { rows } else { columns },
        transposed,
    };
    Op::MatMul(MatMul {
        batch: batch.to_vec(),
        m,
        n,
        k,
        a: matrix(m, k, false),
        b: matrix(k, n, transposed),
        alpha: 1.0,
        bias_axis: BiasAxis::Columns,
        activation: None,
    })
}

fn elementwise(dims: &[usize], instructions: Vec<Instruction>, operands: usize) -> Op {
    let strides = vec![row_major(dims); operands];
    Op::Elementwise(Elementwise {
        program: ElementwiseProgram { lane: NumberType::Float, instructions },
        dims: dims.to_vec(),
        strides,
    })
}

/// Chain of `len` instructions on two operands, which shows the minimum length at which compilation
/// is worthwhile.
fn chain(dims: &[usize], len: usize) -> Op {
    let mut instructions = vec![Instruction::Load(0)];
    for at in 0..len {
        let (operand, binary) = if at % 2 == 0 { (1, Binary::Mul) } else { (0, Binary::Add) };
        instructions.extend([Instruction::Load(operand), Instruction::Binary(binary)]);
    }
    elementwise(dims, instructions, 2)
}

/// Rows of the cases of row operations.
const ROWS: usize = 256;
/// Columns of the cases of row operations.
const COLS: usize = 384;

/// All kinds of operations, most of them at sizes of ResNet-50 and MiniLM.
pub(super) fn all() -> Vec<OperationCase> {
    let mut cases = convolutions();
    cases.extend(products());
    cases.push(attention());
    cases.extend(pools());
    cases.extend(elementwise_chains());
    cases.push(transpose());
    cases.extend(normalisations_and_reductions());
    cases.extend(selections());
    cases
}

fn convolutions() -> Vec<OperationCase> {
    vec![
        OperationCase::new(
            "conv 7x7, stride 2",
            conv(1, 2, 3),
            &[&[1, 3, 224, 224], &[64, 3, 7, 7], &[64]],
            &[1, 64, 112, 112],
        )
        .summing(147),
        OperationCase::new(
            "conv 3x3",
            conv(1, 1, 1),
            &[&[1, 64, 56, 56], &[64, 64, 3, 3], &[64]],
            &[1, 64, 56, 56],
        )
        .summing(576),
        OperationCase::new(
            "conv 1x1",
            conv(1, 1, 0),
            &[&[1, 256, 56, 56], &[64, 256, 1, 1], &[64]],
            &[1, 64, 56, 56],
        )
        .summing(256),
        OperationCase::new(
            "conv 3x3, channels last",
            conv_channels_last(1, 1),
            &[&[1, 56, 56, 64], &[64, 3, 3, 64], &[64]],
            &[1, 56, 56, 64],
        )
        .summing(576),
        OperationCase::new(
            "conv 3x3, channels last, 512 channels",
            conv_channels_last(1, 1),
            &[&[1, 7, 7, 512], &[512, 3, 3, 512], &[512]],
            &[1, 7, 7, 512],
        )
        .summing(4608),
        OperationCase::new(
            "conv 3x3, depthwise",
            conv(32, 1, 1),
            &[&[1, 32, 112, 112], &[32, 1, 3, 3], &[32]],
            &[1, 32, 112, 112],
        )
        .summing(9),
    ]
}

fn products() -> Vec<OperationCase> {
    vec![
        OperationCase::new(
            "matmul 128x384x1536",
            matmul(&[], [128, 1536, 384], false),
            &[&[128, 384], &[384, 1536], &[1536]],
            &[128, 1536],
        )
        .summing(384),
        OperationCase::new(
            "matmul 512x512x512",
            matmul(&[], [512, 512, 512], false),
            &[&[512, 512], &[512, 512], &[512]],
            &[512, 512],
        )
        .summing(512),
        OperationCase::new(
            "matmul 1x2048x1000",
            matmul(&[], [1, 1000, 2048], true),
            &[&[1, 2048], &[1000, 2048], &[1000]],
            &[1, 1000],
        )
        .summing(2048),
        OperationCase::new(
            "matmul 3136x64x256",
            matmul(&[], [3136, 64, 256], true),
            &[&[3136, 256], &[64, 256], &[64]],
            &[3136, 64],
        )
        .summing(256),
        OperationCase::new(
            "matmul 49x2048x512",
            matmul(&[], [49, 2048, 512], true),
            &[&[49, 512], &[2048, 512], &[2048]],
            &[49, 2048],
        )
        .summing(512),
        OperationCase::new(
            "matmul 16x384x384",
            matmul(&[], [16, 384, 384], false),
            &[&[16, 384], &[384, 384], &[384]],
            &[16, 384],
        )
        .summing(384),
        OperationCase::new(
            "matmul 24 of 128x128x32",
            matmul(&[24], [128, 128, 32], true),
            &[&[24, 128, 32], &[24, 128, 32]],
            &[24, 128, 128],
        )
        .summing(32),
    ]
}

fn attention() -> OperationCase {
    let heads = |heads: usize, len: usize, dim: usize| Heads {
        offset: 0,
        batch_stride: heads * len * dim,
        head_stride: dim,
        row_stride: heads * dim,
    };
    let op = Op::Attention(Attention {
        batch: 2,
        heads: 12,
        q_len: 128,
        kv_len: 128,
        head_dim: 32,
        scale: 0.176_776_7,
        q: heads(12, 128, 32),
        k: heads(12, 128, 32),
        v: heads(12, 128, 32),
        mask: None,
    });
    OperationCase::new(
        "attention 2x12x128x32",
        op,
        &[&[2, 128, 12, 32], &[2, 128, 12, 32], &[2, 128, 12, 32]],
        &[2, 128, 12, 32],
    )
    .summing(128)
}

fn pools() -> Vec<OperationCase> {
    vec![
        OperationCase::new("max pool 3x3", pool(PoolKind::Max), &[&[1, 64, 112, 112]], &[1, 64, 56, 56]),
        OperationCase::new(
            "average pool 3x3",
            pool(PoolKind::Average { count_padding: false }),
            &[&[1, 64, 112, 112]],
            &[1, 64, 56, 56],
        )
        .summing(9),
    ]
}

/// One typical chain, and chains of different lengths.
fn elementwise_chains() -> Vec<OperationCase> {
    let load = Instruction::Load;
    let sum = vec![
        load(0),
        load(1),
        Instruction::Binary(Binary::Add),
        Instruction::Unary(weir_graph::Unary::Activate(Activation::Gelu)),
    ];
    let of_chain = |name, len| {
        let count = 1 << 20;
        OperationCase::new(name, chain(&[count], len), &[&[count], &[count]], &[count]).summing(len)
    };
    vec![
        OperationCase::new(
            "add and gelu",
            elementwise(&[1 << 20], sum, 2),
            &[&[1 << 20], &[1 << 20]],
            &[1 << 20],
        ),
        of_chain("1 elementwise instruction", 1),
        of_chain("15 elementwise instructions", 15),
    ]
}

fn transpose() -> OperationCase {
    let op = Op::Copy(Copy {
        fill: None,
        parts: vec![CopyPart {
            input: 0,
            dims: vec![8, 128, 12, 32],
            from: BlockLayout { offset: 0, strides: vec![49_152, 32, 4_096, 1] },
            to: BlockLayout { offset: 0, strides: vec![49_152, 384, 32, 1] },
        }],
    });
    OperationCase::new("transpose", op, &[&[8, 12, 128, 32]], &[8, 128, 12, 32])
}

/// Operation with one output element per row.
fn of_rows(name: &'static str, op: Op) -> OperationCase {
    OperationCase::new(name, op, &[&[ROWS, COLS]], &[ROWS])
}

fn normalisations_and_reductions() -> Vec<OperationCase> {
    let rows = ROWS;
    let cols = COLS;
    let reduce = |kind| Op::Reduce(Reduce { kind, rows, cols });
    vec![
        OperationCase::new(
            "softmax",
            Op::Softmax(Softmax { rows, cols, scale: 1.0, log: false, mask: None }),
            &[&[rows, cols]],
            &[rows, cols],
        )
        .summing(cols),
        OperationCase::new(
            "layer norm",
            Op::LayerNorm(LayerNorm { rows, cols, epsilon: 1e-5 }),
            &[&[rows, cols], &[cols], &[cols]],
            &[rows, cols],
        )
        .summing(cols),
        of_rows("sum of rows", reduce(ReduceKind::Sum)).summing(cols),
        of_rows("largest of rows", reduce(ReduceKind::Max)),
        OperationCase::new(
            "response norm",
            Op::Lrn(Lrn { size: 5, alpha: 1e-4, beta: 0.75, bias: 1.0 }),
            &[&[1, 64, 56, 56]],
            &[1, 64, 56, 56],
        )
        .summing(5),
        OperationCase::new(
            "running sum",
            Op::CumSum(CumSum { rows, cols, exclusive: false, reverse: false }),
            &[&[rows, cols]],
            &[rows, cols],
        )
        .summing(cols),
    ]
}

/// Operations that read or return indices.
fn selections() -> Vec<OperationCase> {
    let rows = ROWS;
    let cols = COLS;
    let gather = Op::Gather(Gather { outer: 1, axis: 30_522, inner: 384, count: 256 });
    let gather = OperationCase {
        indices: Some((1, 30_522)),
        ..OperationCase::new("gather", gather, &[&[30_522, 384], &[256]], &[256, 384])
    };
    let argmax = Op::ArgReduce(ArgReduce { rows, cols, largest: true, last: false });
    let argmax =
        OperationCase { outputs: vec![(vec![rows], Some(Int64))], ..of_rows("place of the largest", argmax) };
    let top = Op::TopK(TopK { rows, cols, k: 5, largest: true });
    let top = OperationCase {
        outputs: vec![(vec![rows, 5], None), (vec![rows, 5], Some(Int64))],
        ..of_rows("top 5", top)
    };
    vec![gather, argmax, top]
}

/// Floating-point types of the graphs, one for each precision or pair of precisions.
pub(super) const FLOATS: [ElementType; 3] = [Fp32, ElementType::Fp16, ElementType::Bf16];
