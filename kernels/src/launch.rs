//! One launch of a kernel, as plain data.

use crate::{Chain, Module};
use std::sync::Arc;

/// A kernel by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Where it is.
    pub module: Module,
    /// What it is called there.
    pub name: String,
}

/// A buffer that an operation works on. Every buffer begins at an address that is a multiple of 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    /// The operand at this place.
    Input(usize),
    /// The output at this place.
    Output(usize),
    /// Memory for intermediate results, [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) of it. What is in it before and after is of no consequence.
    Workspace,
}

/// What a kernel is given, in the order of its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument<B> {
    /// The address of a buffer, 8 bytes.
    Address(B),
    /// No buffer: the address 0.
    Null,
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
    /// A number.
    F32(f32),
    /// A struct, as it lies in memory.
    Bytes(Box<[u8]>),
}

/// What a launch has to do at the least: what is read and written once, and counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Operations on floating-point numbers; a multiplication and an addition are two.
    pub flops: u64,
    /// Bytes that are read or written.
    pub bytes: u64,
}

/// One launch of a kernel on buffers `B`.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch<B> {
    /// Which.
    pub kernel: Kernel,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory. Where it is above 48 KiB, the function's limit must be raised before the launch.
    pub shared_bytes: u32,
    /// What it is given.
    pub arguments: Vec<Argument<B>>,
    /// What it has to do.
    pub cost: Cost,
    /// What the kernel interprets, if it does. A kernel that is compiled from this takes its place, with everything else as it is.
    pub chain: Option<Arc<Chain>>,
}

impl<B> Launch<B> {
    /// The same launch on the buffers that `find` finds.
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
    /// The bytes that the parameter takes, little-endian.
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

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}
