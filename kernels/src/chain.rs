//! Kernels of single elementwise programs, as CUDA C for a compiler that is there at run time.
//!
//! The loops over elements and the arithmetic are those of the interpreter (`cuda/elementwise.cuh`, `cuda/program.cuh`): what is written out here is which instruction
//! follows which, and the types. So there is one place that says what an instruction does, and the bits are the same. Numbers and codes are all
//! that gets into the text.

mod examples;
pub use examples::Example;

use crate::plan::Step;
use std::fmt::Write as _;
use weir_graph::Lane;

/// An elementwise program with the types of what it loads and stores, whatever the sizes and strides. Two that are equal are one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    pub(crate) lane: Lane,
    /// Several neighbours at a time, as `elementwise_packed` takes them.
    pub(crate) packed: bool,
    /// At least one.
    pub(crate) code: Vec<Step>,
    /// By number.
    pub(crate) input_types: Vec<u32>,
    pub(crate) output_type: u32,
}

impl Chain {
    /// What its kernel is called, which takes what the interpreter takes. It needs no shared memory.
    pub const KERNEL: &'static str = "elementwise_chain";

    /// What the source includes, by name.
    pub const HEADERS: [(&'static str, &'static str); 4] = [
        ("elementwise.cuh", include_str!("../cuda/elementwise.cuh")),
        ("program.cuh", include_str!("../cuda/program.cuh")),
        ("prelude.cuh", include_str!("../cuda/prelude.cuh")),
        ("instructions.cuh", include_str!("../cuda/instructions.cuh")),
    ];

    /// How it is compiled, for whichever device. The interpreter was compiled so, too: without joining products and sums, which it has apart.
    pub const OPTIONS: [&'static str; 2] = ["--std=c++17", "--fmad=false"];

    /// How many instructions it has.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.code.len()
    }

    /// The source of its kernel.
    #[must_use]
    pub fn source(&self) -> String {
        let number = match self.lane {
            Lane::Float => "float",
            Lane::Integer => "i64",
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

    /// The instructions, each on a variable of its own.
    fn code(&self, number: &str) -> String {
        let mut text = String::new();
        // Which variable each register is.
        let mut held: Vec<Option<usize>> = Vec::new();
        for input in 0..self.input_types.len() {
            let _ = writeln!(text, "            const {number} v{input} = values[{input}].of[lane];");
            held.push(Some(input));
        }
        for (variable, step) in (self.input_types.len()..).zip(&self.code) {
            let Step { code, to, a, b, c, kind, value } = *step;
            let operand = |register: u8| match held.get(usize::from(register)) {
                Some(Some(variable)) => format!("v{variable}"),
                // What an instruction does not take is register 0, whatever is there.
                _ => format!("{number}(0)"),
            };
            let (a, b, c) = (operand(a), operand(b), operand(c));
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
    fn the_examples_have_every_instruction_kind_and_type() {
        let chains: Vec<_> = Example::all().iter().map(|example| example.chain().unwrap()).collect();
        let distinct: HashSet<_> = chains.iter().map(|chain| chain.source()).collect();
        assert_eq!(distinct.len(), chains.len());
        let steps = |lane| {
            let of_lane = chains.iter().filter(move |chain| chain.lane == lane);
            of_lane.flat_map(|chain| &chain.code).map(|step| (step.code, step.kind)).collect::<HashSet<_>>()
        };
        let (floats, integers) = (steps(Lane::Float), steps(Lane::Integer));
        // As in cuda/program.cuh.
        assert!((0..=36).all(|code| floats.iter().any(|step| step.0 == code)), "{floats:?}");
        assert!((0..=23).all(|code| integers.iter().any(|step| step.0 == code)), "{integers:?}");
        assert!((1..=11).all(|activation| floats.contains(&(36, activation))), "{floats:?}");
        assert!((0..=8).all(|to| floats.contains(&(23, to))), "{floats:?}");
        assert!((3..=7).all(|to| integers.contains(&(23, to))), "{integers:?}");
        for (lane, packed) in [(Lane::Float, true), (Lane::Float, false), (Lane::Integer, false)] {
            let of_loop: Vec<_> =
                chains.iter().filter(|chain| (chain.lane, chain.packed) == (lane, packed)).collect();
            let loads: HashSet<_> = of_loop.iter().flat_map(|chain| chain.input_types.clone()).collect();
            let stores: HashSet<_> = of_loop.iter().map(|chain| chain.output_type).collect();
            assert!((0..=8).all(|code| loads.contains(&code)), "{lane:?}, {packed}: {loads:?}");
            assert!((0..=8).all(|code| stores.contains(&code)), "{lane:?}, {packed}: {stores:?}");
        }
    }

    #[test]
    fn sizes_and_strides_are_not_in_the_source() {
        let (small, large) = (Example::silu(&[3]), Example::silu(&[1 << 20]));
        assert_eq!(small.chain(), large.chain());
        let broadcast = Example::silu(&[3, 5]);
        assert_ne!(small.chain(), broadcast.chain(), "another loop");
        assert_eq!(broadcast.chain(), Example::silu(&[4, 4, 4]).chain());
        assert_eq!(small.chain().unwrap().len(), 3);
    }
}
