//! Elementwise expressions over values that broadcast against each other.

use weir_types::ElementType;

/// Largest number of instructions in a [`ElementwiseProgram`].
pub const INSTRUCTIONS_MAX: usize = 32;
/// Largest number of operands of a program.
pub const INPUTS_MAX: usize = 8;
/// Largest number of values on a program's stack.
pub const STACK_MAX: usize = 8;

/// One expression for every element. Operands: as many as the program loads from; output: the
/// product of `dims` elements, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Elementwise {
    /// Expression for each element.
    pub program: ElementwiseProgram,
    /// Dimensions of the output, collapsed to as few as the strides allow: 1 to
    /// [`DIMS_MAX`](super::DIMS_MAX).
    pub dims: Vec<usize>,
    /// Strides of each operand along `dims`, in elements: 0 where the operand broadcasts.
    pub strides: Vec<Vec<usize>>,
}

/// A stack machine's program: instructions in postfix order that leave one number on the stack.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementwiseProgram {
    /// Number type of the computation. Loads convert to this type, and stores convert from it.
    pub lane: NumberType,
    /// The instructions, at most [`INSTRUCTIONS_MAX`].
    pub instructions: Vec<Instruction>,
}

/// Number type that a program computes in, called the lane of the program.
///
/// Loading a boolean gives 0 or 1. Storing to a boolean gives 1 for any number except 0. Storing a
/// float to an integer truncates (the result is unspecified if it overflows); storing an integer to
/// a narrower one keeps its lowest bits. Comparisons give 0 or 1, and any number except 0 is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberType {
    /// `f32`, for all types of floats.
    Float,
    /// `i64`, wrapping on overflow.
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
    /// Push the element of the operand at this index.
    Load(u8),
    /// Push a constant of the program's lane.
    Constant(Scalar),
    /// Replace the top of the stack.
    Unary(Unary),
    /// Replace the top two, `a` below `b`, by one number.
    Binary(Binary),
    /// Replace the top three, `condition` below `a` below `b`, by `a` if the condition is true,
    /// else by `b`.
    Where,
}

/// Operation on one number. Operations marked "Float" exist in the float lane only.
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
    /// Convert to this type and back to the lane: floats are rounded, fractions truncated, integers
    /// wrapped, and booleans become 0 or 1.
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
    /// Float: the largest integer not above the operand
    Floor,
    /// Float: the smallest integer not below the operand
    Ceil,
    /// Float: the nearest integer, halves to the even neighbour
    Round,
    /// Float: 1 if it is not a number, else 0
    IsNan,
    /// Float: an activation function
    Activate(Activation),
}

/// Activation functions, on floats.
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
        /// Slope.
        alpha: f32,
        /// Value at 0.
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
        /// Smallest result; may be negative infinity.
        min: f32,
        /// Largest result; may be infinity.
        max: f32,
    },
}

/// Operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`; for integers truncated towards 0, and 0 if `b` is 0
    Div,
    /// `a` to the power of `b`; for integers 0 for a negative `b`, unless `a` is 1 or -1
    Pow,
    /// Minimum
    Min,
    /// Maximum
    Max,
    /// Remainder with the sign of `b`; for integers 0 if `b` is 0
    Mod,
    /// Remainder with the sign of `a`; for integers 0 if `b` is 0
    Fmod,
    /// Whether `a == b`
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
    /// Whether at least one is true
    Or,
    /// Whether exactly one is true
    Xor,
}

/// Reason why a program cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The program exceeds [`INSTRUCTIONS_MAX`].
    #[error("{0} instructions; at most {INSTRUCTIONS_MAX} are possible")]
    Long(usize),
    /// The program exceeds [`STACK_MAX`].
    #[error("needs more than {STACK_MAX} numbers at once")]
    Deep,
    /// An instruction finds too few numbers on the stack, or the program does not leave exactly
    /// one.
    #[error("instruction {0} finds a wrong number of values on the stack")]
    Unbalanced(usize),
    /// A load from an operand that does not exist.
    #[error("loads from operand {0}, of {1}")]
    Operand(u8, usize),
    /// An instruction or constant of the wrong lane.
    #[error("instruction {0} is of the wrong lane")]
    Lane(usize),
}

impl NumberType {
    /// The lane for elements of this type. Booleans use the integer lane, although both lanes
    /// represent them exactly.
    #[must_use]
    pub fn for_element_type(element_type: ElementType) -> Self {
        use ElementType::{Bf16, Fp16, Fp32, Fp64};
        if matches!(element_type, Bf16 | Fp16 | Fp32 | Fp64) { Self::Float } else { Self::Integer }
    }
}

impl Scalar {
    /// The lane of the number.
    #[must_use]
    pub fn lane(self) -> NumberType {
        match self {
            Self::Float(_) => NumberType::Float,
            Self::Integer(_) => NumberType::Integer,
        }
    }

    /// Convert to the other lane, truncating fractions.
    #[must_use]
    pub fn in_lane(self, lane: NumberType) -> Self {
        match (self, lane) {
            (Self::Float(number), NumberType::Integer) => Self::Integer(number as i64),
            (Self::Integer(number), NumberType::Float) => Self::Float(number as f32),
            (same, _) => same,
        }
    }
}

impl Unary {
    /// Whether the operation exists in the float lane only.
    #[must_use]
    pub fn is_float_only(self) -> bool {
        !matches!(self, Self::Neg | Self::Abs | Self::Sign | Self::Not | Self::Cast(_))
    }
}

impl ElementwiseProgram {
    /// Check that the program can run with this many operands, within the limits.
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
                Instruction::Unary(unary) if unary.is_float_only() && self.lane == NumberType::Integer => {
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
