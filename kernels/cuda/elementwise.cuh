// Fused elementwise expressions: the loops over elements, generic over the evaluation of a program.
// A program is evaluated by the interpreter (elementwise.cu), or by one program's generated code
// (src/chain.rs), which NVRTC compiles. Both give the same bits: they share the arithmetic of
// program.cuh, and modules that include this file are compiled without contraction (--fmad=false),
// which would fuse separate instructions of the interpreter.
//
// A program computes in f32 or in i64, and converts at loads and stores. An evaluator has
// `inputs()`, `input_type(i)`, `output_type()`, and `run(values)`, which takes the inputs of
// `lanes` neighbours.
#pragma once
#include "program.cuh"

// `lanes` elements that a thread processes at once.
template <class T, int lanes>
struct __align__(sizeof(T) * lanes) Lanes {
    T of[lanes];
};

__device__ __forceinline__ void load(float& to, const void* from, i64 i, u32 type) { to = load_f32(from, i, type); }
__device__ __forceinline__ void load(i64& to, const void* from, i64 i, u32 type) { to = load_i64(from, i, type); }
__device__ __forceinline__ void store(void* to, i64 i, u32 type, float value) { store_f32(to, i, type, value); }
__device__ __forceinline__ void store(void* to, i64 i, u32 type, i64 value) { store_i64(to, i, type, value); }

// Load four neighbouring floats. `i` is a multiple of four.
__device__ __forceinline__ void load_four(Lanes<float, 4>& to, const void* from, u64 i, u32 type) {
    if (type == type_f32) {
        to = static_cast<const Lanes<float, 4>*>(from)[i / 4];
        return;
    }
    const Lanes<u16, 4> halves = static_cast<const Lanes<u16, 4>*>(from)[i / 4];
#pragma unroll
    for (int lane = 0; lane < 4; lane++) to.of[lane] = type == type_f16 ? f16_to_f32(halves.of[lane]) : bf16_to_f32(halves.of[lane]);
}
__device__ __forceinline__ void store_four(void* to, u64 i, u32 type, const Lanes<float, 4>& from) {
    if (type == type_f32) {
        static_cast<Lanes<float, 4>*>(to)[i / 4] = from;
        return;
    }
    Lanes<u16, 4> halves;
#pragma unroll
    for (int lane = 0; lane < 4; lane++) halves.of[lane] = type == type_f16 ? f32_to_f16(from.of[lane]) : f32_to_bf16(from.of[lane]);
    static_cast<Lanes<u16, 4>*>(to)[i / 4] = halves;
}

// Parameters of every elementwise kernel.
#define ELEMENTWISE_PARAMETERS                                                                                                         \
    void *to, const void *in0, const void *in1, const void *in2, const void *in3, const void *in4, const void *in5, const void *in6, \
        const void *in7, Elementwise e
#define ELEMENTWISE_INPUTS {in0, in1, in2, in3, in4, in5, in6, in7}

constexpr int packed_lanes = 4;

// Floats, with each input contiguous like the output or a single number: four neighbours at a time.
template <class Program>
__device__ __forceinline__ void packed(void* to, const void* const (&inputs)[inputs_max], const Elementwise& e, const Program& program) {
    constexpr int lanes = packed_lanes;
    typedef Lanes<float, lanes> Four;
    for (u64 i = first_element() * lanes; i < e.count; i += element_step() * lanes) {
        const bool whole = i + lanes <= e.count;
        // Issue all loads before the program waits for the first of them.
        Four values[inputs_max];
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= program.inputs()) break;
            const u32 type = program.input_type(input);
            const bool one = e.stride[input][0] == 0;
            if (!one && whole && type <= type_bf16) {
                load_four(values[input], inputs[input], i, type);
                continue;
            }
#pragma unroll
            for (int lane = 0; lane < lanes; lane++) {
                const u64 at = i + lane < e.count ? i + lane : e.count - 1;
                values[input].of[lane] = load_f32(inputs[input], one ? 0 : i64(at), type);
            }
        }
        const Four result = program.run(values);
        if (whole && program.output_type() <= type_bf16) {
            store_four(to, i, program.output_type(), result);
            continue;
        }
#pragma unroll
        for (int lane = 0; lane < lanes; lane++)
            if (i + lane < e.count) store_f32(to, i64(i) + lane, program.output_type(), result.of[lane]);
    }
}

// Inputs with arbitrary strides.
template <class T, class Program>
__device__ __forceinline__ void strided(void* to, const void* const (&inputs)[inputs_max], const Elementwise& e, const Program& program) {
    for (u64 i = first_element(); i < e.count; i += element_step()) {
        i64 place[inputs_max] = {};
        u32 rest = u32(i);
#pragma unroll
        for (int d = 0; d < dimensions_max; d++) {
            if (d >= int(e.rank)) break;
            const u32 outer = d + 1 == int(e.rank) ? 0 : rest / e.size[d];
            const u32 at = rest - outer * e.size[d];
#pragma unroll
            for (int input = 0; input < inputs_max; input++) place[input] += at * e.stride[input][d];
            rest = outer;
        }
        Lanes<T, 1> values[inputs_max];
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= program.inputs()) break;
            load(values[input].of[0], inputs[input], place[input], program.input_type(input));
        }
        store(to, i64(i), program.output_type(), program.run(values).of[0]);
    }
}
