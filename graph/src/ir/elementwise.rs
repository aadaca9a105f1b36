//! Expressions over the elements of values that broadcast against each other.

use weir_types::ElementType;

/// The most instructions in a [`Program`].
pub const INSTRUCTIONS_MAX: usize = 32;
/// The most operands of one.
pub const INPUTS_MAX: usize = 8;
/// The most numbers on its stack at once.
pub const STACK_MAX: usize = 8;

/// One expression for every element. Operands: as many as the program loads from; output: the product of `dims` elements, in their row-major
/// order.
#[derive(Debug, Clone, PartialEq)]
pub struct Elementwise {
    /// What is computed.
    pub program: Program,
    /// The elements of the output in as few dimensions as the strides allow: 1 to [`DIMS_MAX`](super::DIMS_MAX).
    pub dims: Vec<usize>,
    /// For each operand, how many elements lie between one index and the next along each of `dims`: 0 where it broadcasts.
    pub strides: Vec<Vec<usize>>,
}

/// A stack machine's program: instructions in postfix order that leave one number.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// What it computes in. Whatever is loaded is converted to it, and from it what is stored.
    pub lane: Lane,
    /// At most [`INSTRUCTIONS_MAX`].
    pub instructions: Vec<Instruction>,
}

/// The numbers that a program computes in.
///
/// Loading a boolean gives 0 or 1. Storing to a boolean gives whether the number is not 0; storing a float to an integer cuts off its fraction (what
/// does not fit is anything); storing an integer to a narrower one keeps its lowest bits. Comparisons give 0 or 1, and any number but 0 is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// `f32`, whatever floats are loaded and stored.
    Float,
    /// `i64`, wrapping.
    Integer,
}

/// A number of either lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// Of a floating-point type.
    Float(f32),
    /// Of an integer type, or a boolean, which is 0 or 1.
    Integer(i64),
}

/// One step of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Instruction {
    /// Push this element of the operand at this place.
    Load(u8),
    /// Push a constant, which is of the program's lane.
    Constant(Scalar),
    /// Replace the top.
    Unary(Unary),
    /// Replace the two on top, `a` below `b`, by one.
    Binary(Binary),
    /// Replace the three on top, `condition` below `a` below `b`, by `a` where the condition is true, else by `b`.
    Where,
}

/// What becomes of one number. Those marked so are for floats only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// -1, 0 or 1
    Sign,
    /// 1 if it is 0, else 0
    Not,
    /// To this type and back to the lane: floats are rounded, fractions cut off, integers wrapped, and booleans become 0 or 1.
    Cast(ElementType),
    /// Float: the square root
    Sqrt,
    /// Float: `1 / sqrt(x)`
    Rsqrt,
    /// Float: `1 / x`
    Reciprocal,
    /// Float: e to the x
    Exp,
    /// Float: the natural logarithm
    Log,
    /// Float: the error function
    Erf,
    /// Float: the sine
    Sin,
    /// Float: the cosine
    Cos,
    /// Float: the largest integer not above
    Floor,
    /// Float: the smallest integer not below
    Ceil,
    /// Float: the nearest integer, halves to the even one
    Round,
    /// Float: 1 if it is not a number, else 0
    IsNan,
    /// Float: what networks call an activation
    Activate(Activation),
}

/// Functions that networks put behind their layers, of floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `x < 0 ? alpha * x : x`
    LeakyRelu(f32),
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// The hyperbolic tangent
    Tanh,
    /// `clamp(alpha * x + beta, 0, 1)`
    HardSigmoid {
        /// The slope.
        alpha: f32,
        /// The value at 0.
        beta: f32,
    },
    /// `x * clamp(x / 6 + 0.5, 0, 1)`
    HardSwish,
    /// `x * sigmoid(x)`
    Silu,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`
    GeluTanh,
    /// `log(1 + exp(x))`, without overflow
    Softplus,
    /// `min(max(x, min), max)`
    Clip {
        /// The smallest result; may be negative infinity.
        min: f32,
        /// The largest result; may be infinity.
        max: f32,
    },
}

/// What becomes of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`; of integers towards 0, and 0 if `b` is
    Div,
    /// `a` to the power of `b`; of integers 0 for a negative `b`, unless `a` is 1 or -1
    Pow,
    /// The smaller
    Min,
    /// The larger
    Max,
    /// The remainder with the sign of `b`; of integers 0 if `b` is
    Mod,
    /// The remainder with the sign of `a`; of integers 0 if `b` is
    Fmod,
    /// Whether they are equal
    Equal,
    /// Whether `a < b`
    Less,
    /// Whether `a <= b`
    LessEqual,
    /// Whether `a > b`
    Greater,
    /// Whether `a >= b`
    GreaterEqual,
    /// Whether both are true
    And,
    /// Whether one is true
    Or,
    /// Whether just one is true
    Xor,
}

/// Why a program cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// Over [`INSTRUCTIONS_MAX`].
    #[error("{0} instructions; at most {INSTRUCTIONS_MAX} are possible")]
    Long(usize),
    /// Over [`STACK_MAX`].
    #[error("needs more than {STACK_MAX} numbers at once")]
    Deep,
    /// An instruction finds too few numbers, or more or less than one is left.
    #[error("instruction {0} does not find what it needs")]
    Unbalanced(usize),
    /// An operand that is not there.
    #[error("loads from operand {0}, of {1}")]
    Operand(u8, usize),
    /// An instruction or constant of the other lane.
    #[error("instruction {0} is not one of its lane")]
    Lane(usize),
}

impl Lane {
    /// The lane for elements of this type. Booleans are integers, but either lane has them exactly.
    #[must_use]
    pub fn of(element_type: ElementType) -> Self {
        use ElementType::{Bf16, Fp16, Fp32, Fp64};
        if matches!(element_type, Bf16 | Fp16 | Fp32 | Fp64) { Self::Float } else { Self::Integer }
    }
}

impl Scalar {
    /// Its lane.
    #[must_use]
    pub fn lane(self) -> Lane {
        match self {
            Self::Float(_) => Lane::Float,
            Self::Integer(_) => Lane::Integer,
        }
    }

    /// The same number in the other lane, a fraction cut off.
    #[must_use]
    pub fn in_lane(self, lane: Lane) -> Self {
        match (self, lane) {
            (Self::Float(number), Lane::Integer) => Self::Integer(number as i64),
            (Self::Integer(number), Lane::Float) => Self::Float(number as f32),
            (same, _) => same,
        }
    }
}

impl Unary {
    /// Whether only floats have it.
    #[must_use]
    pub fn is_float_only(self) -> bool {
        !matches!(self, Self::Neg | Self::Abs | Self::Sign | Self::Not | Self::Cast(_))
    }
}

impl Program {
    /// Check that it runs with this many operands, within the limits.
    pub fn check(&self, operands: usize) -> Result<(), ProgramError> {
        if self.instructions.len() > INSTRUCTIONS_MAX {
            return Err(ProgramError::Long(self.instructions.len()));
        }
        let mut depth = 0;
        for (at, instruction) in self.instructions.iter().enumerate() {
            let takes = match instruction {
                Instruction::Load(place) if usize::from(*place) >= operands => {
                    return Err(ProgramError::Operand(*place, operands));
                }
                Instruction::Constant(scalar) if scalar.lane() != self.lane => {
                    return Err(ProgramError::Lane(at));
                }
                Instruction::Unary(unary) if unary.is_float_only() && self.lane == Lane::Integer => {
                    return Err(ProgramError::Lane(at));
                }
                Instruction::Load(_) | Instruction::Constant(_) => 0,
                Instruction::Unary(_) => 1,
                Instruction::Binary(_) => 2,
                Instruction::Where => 3,
            };
            depth = usize::checked_sub(depth, takes).ok_or(ProgramError::Unbalanced(at))? + 1;
            if depth > STACK_MAX {
                return Err(ProgramError::Deep);
            }
        }
        if depth == 1 { Ok(()) } else { Err(ProgramError::Unbalanced(self.instructions.len())) }
    }
}
