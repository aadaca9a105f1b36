//! Elementwise programs compiled to dedicated kernels: CUDA C source for a compiler at run time.
//!
//! The loops over elements and the arithmetic are shared with the interpreter
//! (`cuda/elementwise.cuh`, `cuda/program.cuh`); the generated source states only the sequence of
//! instructions and the types. So the semantics of an instruction are defined once, and both give
//! the same bits. The generated text contains numbers and codes only.

mod examples;
pub use examples::Example;

use crate::plan::RegisterInstruction;
use std::fmt::Write as _;
use weir_graph::NumberType;

/// An elementwise program with the types of its operands, independent of sizes and strides. Equal
/// chains share one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    pub(crate) lane: NumberType,
    /// Whether a thread processes several neighbours at a time, as `elementwise_packed` does.
    pub(crate) packed: bool,
    /// Instructions, at least one.
    pub(crate) code: Vec<RegisterInstruction>,
    /// Type code of each operand.
    pub(crate) input_types: Vec<u32>,
    pub(crate) output_type: u32,
}

impl Chain {
    /// Name of the kernel, which takes the parameters of the interpreter. It needs no shared
    /// memory.
    pub const KERNEL: &'static str = "elementwise_chain";

    /// Headers that the source includes, by name.
    pub const HEADERS: [(&'static str, &'static str); 4] = [
        ("elementwise.cuh", include_str!("../cuda/elementwise.cuh")),
        ("program.cuh", include_str!("../cuda/program.cuh")),
        ("prelude.cuh", include_str!("../cuda/prelude.cuh")),
        ("instructions.cuh", include_str!("../cuda/instructions.cuh")),
    ];

    /// Compiler options for every device. The interpreter was compiled with the same options:
    /// without contraction of products and sums, which are separate instructions in the
    /// interpreter.
    pub const OPTIONS: [&'static str; 2] = ["--std=c++17", "--fmad=false"];

    /// Number of instructions.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a chain is never empty")]
    pub fn len(&self) -> usize {
        self.code.len()
    }

    /// The source of the kernel.
    #[must_use]
    pub fn source(&self) -> String {
        let number = match self.lane {
            NumberType::Float => "float",
            NumberType::Integer => "i64",
        };
        let (lanes, run) = if self.packed {
            ("packed_lanes", "packed".to_owned())
        } else {
            ("1", format!("strided<{number}>"))
        };
        let mut types = String::new();
        for (input, code) in self.input_types.iter().enumerate() {
            let _ = write!(types, "input == {input} ? {code} : ");
        }
        format!(
            "#define SMOOTHLY __forceinline__
#include \"elementwise.cuh\"
typedef Lanes<{number}, {lanes}> Numbers;
struct Chain {{
    __device__ __forceinline__ static int inputs() {{ return {inputs}; }}
    __device__ __forceinline__ static u32 input_type(int input) {{ return {types}0; }}
    __device__ __forceinline__ static u32 output_type() {{ return {output}; }}
    __device__ __forceinline__ static Numbers run(const Numbers (&values)[inputs_max]) {{
        Numbers result;
#pragma unroll
        for (int lane = 0; lane < {lanes}; lane++) {{
{code}        }}
        return result;
    }}
}};
KERNEL({kernel}, (threads), ELEMENTWISE_PARAMETERS) {{
    const void* const inputs[inputs_max] = ELEMENTWISE_INPUTS;
    {run}(to, inputs, e, Chain());
}}
",
            inputs = self.input_types.len(),
            output = self.output_type,
            code = self.code(number),
            kernel = Self::KERNEL,
        )
    }

    /// The instructions, with a separate variable for each result.
    fn code(&self, number: &str) -> String {
        let mut text = String::new();
        // Variable that holds each register.
        let mut held: Vec<Option<usize>> = Vec::new();
        for input in 0..self.input_types.len() {
            let _ = writeln!(text, "            const {number} v{input} = values[{input}].of[lane];");
            held.push(Some(input));
        }
        for (variable, step) in (self.input_types.len()..).zip(&self.code) {
            let RegisterInstruction { code, to, a, b, c, kind, value } = *step;
            let operand = |register: u8| match held.get(usize::from(register)) {
                Some(Some(variable)) => format!("v{variable}"),
                // Operands that an instruction does not use have register 0, which may be unset.
                _ => format!("{number}(0)"),
            };
            let a = operand(a);
            let b = operand(b);
            let c = operand(c);
            let _ = writeln!(
                text,
                "            const {number} v{variable} = compute(Instruction{{{code}, 0, 0, 0, 0, {kind}, {value:#x}ull}}, {a}, {b}, {c});"
            );
            let to = usize::from(to);
            held.resize(held.len().max(to + 1), None);
            if let Some(register) = held.get_mut(to) {
                *register = Some(variable);
            }
        }
        let last = self.input_types.len() + self.code.len().saturating_sub(1);
        let _ = writeln!(text, "            result.of[lane] = v{last};");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn examples_cover_every_instruction_and_type() {
        let chains: Vec<_> = Example::all().iter().map(|example| example.chain().unwrap()).collect();
        let distinct: HashSet<_> = chains.iter().map(|chain| chain.source()).collect();
        assert_eq!(distinct.len(), chains.len());
        let steps = |lane| {
            let of_lane = chains.iter().filter(move |chain| chain.lane == lane);
            of_lane.flat_map(|chain| &chain.code).map(|step| (step.code, step.kind)).collect::<HashSet<_>>()
        };
        let floats = steps(NumberType::Float);
        let integers = steps(NumberType::Integer);
        // The codes of `cuda/program.cuh`.
        assert!((0..=36).all(|code| floats.iter().any(|step| step.0 == code)), "{floats:?}");
        assert!((0..=23).all(|code| integers.iter().any(|step| step.0 == code)), "{integers:?}");
        assert!((1..=11).all(|activation| floats.contains(&(36, activation))), "{floats:?}");
        assert!((0..=8).all(|to| floats.contains(&(23, to))), "{floats:?}");
        assert!((3..=7).all(|to| integers.contains(&(23, to))), "{integers:?}");
        for (lane, packed) in
            [(NumberType::Float, true), (NumberType::Float, false), (NumberType::Integer, false)]
        {
            let of_loop: Vec<_> =
                chains.iter().filter(|chain| (chain.lane, chain.packed) == (lane, packed)).collect();
            let loads: HashSet<_> = of_loop.iter().flat_map(|chain| chain.input_types.clone()).collect();
            let stores: HashSet<_> = of_loop.iter().map(|chain| chain.output_type).collect();
            assert!((0..=8).all(|code| loads.contains(&code)), "{lane:?}, {packed}: {loads:?}");
            assert!((0..=8).all(|code| stores.contains(&code)), "{lane:?}, {packed}: {stores:?}");
        }
    }

    #[test]
    fn source_is_independent_of_sizes_and_strides() {
        let small = Example::silu(&[3]);
        let large = Example::silu(&[1 << 20]);
        assert_eq!(small.chain(), large.chain());
        let broadcast = Example::silu(&[3, 5]);
        assert_ne!(small.chain(), broadcast.chain(), "another loop");
        assert_eq!(broadcast.chain(), Example::silu(&[4, 4, 4]).chain());
        assert_eq!(small.chain().unwrap().len(), 3);
    }
}
