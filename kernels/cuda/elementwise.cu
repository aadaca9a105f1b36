// Fused elementwise expressions: an interpreter of a short program, the same for every element. Its registers lie in shared memory, a
// column for each thread, since registers of the machine cannot be numbered at run time. Control flow is uniform.
//
// A program computes in f32 or in i64 throughout, and what it loads and stores is converted.
#include "program.cuh"

// `lanes` elements that a thread works on at once.
template <class T, int lanes>
struct __align__(sizeof(T) * lanes) Lanes {
    T of[lanes];
};

// Run the program for this thread, whose inputs are in its first registers.
template <class T, int lanes>
__device__ __forceinline__ Lanes<T, lanes> interpret(const Elementwise& e, Lanes<T, lanes>* registers) {
    Lanes<T, lanes> result = {};
    for (u32 at = 0; at < e.instructions; at++) {
        const Instruction& in = e.code[at];
        const Lanes<T, lanes> a = registers[in.a * threads], b = registers[in.b * threads], c = registers[in.c * threads];
#pragma unroll
        for (int lane = 0; lane < lanes; lane++) result.of[lane] = compute(in, a.of[lane], b.of[lane], c.of[lane]);
        registers[in.to * threads] = result;
    }
    return result;
}

__device__ __forceinline__ void load(float& to, const void* from, i64 i, u32 type) { to = load_f32(from, i, type); }
__device__ __forceinline__ void load(i64& to, const void* from, i64 i, u32 type) { to = load_i64(from, i, type); }
__device__ __forceinline__ void store(void* to, i64 i, u32 type, float value) { store_f32(to, i, type, value); }
__device__ __forceinline__ void store(void* to, i64 i, u32 type, i64 value) { store_i64(to, i, type, value); }

// Four neighbours of floats at once. `i` is a multiple of four.
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

#define INPUTS                                                                                                               \
    const void *in0, const void *in1, const void *in2, const void *in3, const void *in4, const void *in5, const void *in6, \
        const void *in7

// Floats where each input is as the output, or one number for all of it: four neighbours at a time.
KERNEL(elementwise_packed, (threads), void* to, INPUTS, Elementwise e) {
    constexpr int lanes = 4;
    typedef Lanes<float, lanes> Four;
    DYNAMIC_SHARED(Four, shared);
    Four* registers = shared + threadIdx.x;
    const void* const inputs[inputs_max] = {in0, in1, in2, in3, in4, in5, in6, in7};
    for (u64 i = first_element() * lanes; i < e.count; i += element_step() * lanes) {
        const bool whole = i + lanes <= e.count;
        Four values[inputs_max];
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= int(e.inputs)) break;
            const bool one = e.stride[input][0] == 0;
            if (!one && whole && e.input_type[input] <= type_bf16) {
                load_four(values[input], inputs[input], i, e.input_type[input]);
                continue;
            }
#pragma unroll
            for (int lane = 0; lane < lanes; lane++) {
                const u64 at = i + lane < e.count ? i + lane : e.count - 1;
                values[input].of[lane] = load_f32(inputs[input], one ? 0 : i64(at), e.input_type[input]);
            }
        }
        // Only now, so that all loads are under way before the first of them is waited for.
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= int(e.inputs)) break;
            registers[input * threads] = values[input];
        }
        const Four result = interpret(e, registers);
        if (whole && e.output_type <= type_bf16) {
            store_four(to, i, e.output_type, result);
            continue;
        }
#pragma unroll
        for (int lane = 0; lane < lanes; lane++)
            if (i + lane < e.count) store_f32(to, i64(i) + lane, e.output_type, result.of[lane]);
    }
}

// Inputs of any strides.
template <class T>
__device__ __forceinline__ void strided(void* to, const void* const (&inputs)[inputs_max], const Elementwise& e, Lanes<T, 1>* registers) {
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
        T values[inputs_max];
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= int(e.inputs)) break;
            load(values[input], inputs[input], place[input], e.input_type[input]);
        }
#pragma unroll
        for (int input = 0; input < inputs_max; input++) {
            if (input >= int(e.inputs)) break;
            registers[input * threads].of[0] = values[input];
        }
        store(to, i64(i), e.output_type, interpret(e, registers).of[0]);
    }
}

typedef Lanes<float, 1> Float;
KERNEL(elementwise_float, (threads), void* to, INPUTS, Elementwise e) {
    DYNAMIC_SHARED(Float, registers);
    const void* const inputs[inputs_max] = {in0, in1, in2, in3, in4, in5, in6, in7};
    strided(to, inputs, e, registers + threadIdx.x);
}

typedef Lanes<i64, 1> Integer;
KERNEL(elementwise_integer, (threads), void* to, INPUTS, Elementwise e) {
    DYNAMIC_SHARED(Integer, registers);
    const void* const inputs[inputs_max] = {in0, in1, in2, in3, in4, in5, in6, in7};
    strided(to, inputs, e, registers + threadIdx.x);
}
