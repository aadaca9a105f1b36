//! One launch of a kernel, as plain data.

use crate::{Chain, KernelModule};
use std::sync::Arc;

/// A kernel by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Module of the kernel.
    pub module: KernelModule,
    /// Name of the kernel in its module.
    pub name: String,
}

/// A buffer of an operation. The address of every buffer is a multiple of 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperandBuffer {
    /// The operand at this index.
    Input(usize),
    /// The output at this index.
    Output(usize),
    /// Memory for intermediate results, of
    /// [`Plan::workspace_bytes`](crate::LaunchPlan::workspace_bytes). Its contents before and after
    /// the launches are irrelevant.
    Workspace,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument<B> {
    /// Address of a buffer, 8 bytes.
    Address(B),
    /// No buffer: the address 0.
    Null,
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
    /// A number.
    F32(f32),
    /// A struct in its memory layout.
    Bytes(Box<[u8]>),
}

/// Least work of a launch: data that is read or written repeatedly counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchCost {
    /// Floating-point operations; a multiplication with an addition counts as two.
    pub flops: u64,
    /// Bytes read or written.
    pub bytes: u64,
}

/// One launch of a kernel on buffers `B`.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch<B> {
    /// The kernel.
    pub kernel: Kernel,
    /// Number of blocks in each direction.
    pub grid: [u32; 3],
    /// Number of threads of a block in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory. Above 48 KiB, the function's limit must be raised before the launch.
    pub shared_bytes: u32,
    /// Arguments in the order of the kernel's parameters.
    pub arguments: Vec<Argument<B>>,
    /// Least work of the launch.
    pub cost: LaunchCost,
    /// Program that the kernel interprets, if any. A kernel compiled from this chain can replace
    /// the interpreter, with all other fields unchanged.
    pub chain: Option<Arc<Chain>>,
}

impl<B> Launch<B> {
    /// Replace each buffer with `find(buffer)`.
    pub fn with_buffers<C>(&self, mut find: impl FnMut(&B) -> C) -> Launch<C> {
        let arguments = self.arguments.iter().map(|argument| match argument {
            Argument::Address(buffer) => Argument::Address(find(buffer)),
            Argument::Null => Argument::Null,
            Argument::U32(number) => Argument::U32(*number),
            Argument::U64(number) => Argument::U64(*number),
            Argument::F32(number) => Argument::F32(*number),
            Argument::Bytes(bytes) => Argument::Bytes(bytes.clone()),
        });
        Launch {
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            arguments: arguments.collect(),
            cost: self.cost,
            chain: self.chain.clone(),
        }
    }
}

impl Argument<u64> {
    /// The parameter's bytes, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Address(address) => address.to_le_bytes().to_vec(),
            Self::Null => vec![0; 8],
            Self::U32(number) => number.to_le_bytes().to_vec(),
            Self::U64(number) => number.to_le_bytes().to_vec(),
            Self::F32(number) => number.to_le_bytes().to_vec(),
            Self::Bytes(bytes) => bytes.to_vec(),
        }
    }
}

impl std::ops::Add for LaunchCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}
