// Fused elementwise expressions: an interpreter of a short program, the same for every element. Its registers lie in shared memory, a
// column for each thread, since registers of the machine cannot be numbered at run time. Control flow is uniform.
//
// A program computes in f32 or in i64 throughout, and what it loads and stores is converted.
#include "prelude.cuh"

constexpr int inputs_max = 8;
constexpr int instructions_max = 32;
constexpr int threads = 128;

// By number, as Code in the launch description has them.
enum Code : u32 {
    code_constant = 0, code_where = 1,
    code_add = 2, code_sub = 3, code_mul = 4, code_div = 5, code_pow = 6, code_min = 7, code_max = 8, code_mod = 9, code_fmod = 10,
    code_equal = 11, code_less = 12, code_less_equal = 13, code_greater = 14, code_greater_equal = 15,
    code_and = 16, code_or = 17, code_xor = 18, code_not = 19,
    code_neg = 20, code_abs = 21, code_sign = 22, code_cast = 23,
    // Floats only.
    code_sqrt = 24, code_rsqrt = 25, code_reciprocal = 26, code_exp = 27, code_log = 28, code_erf = 29, code_sin = 30, code_cos = 31,
    code_floor = 32, code_ceil = 33, code_round = 34, code_is_nan = 35, code_activate = 36,
};

struct Instruction {
    u16 code;
    // Registers: of the number that comes out, and of those that go in.
    u8 to, a, b, c;
    // An ActivationKind or a Type.
    u16 kind;
    // A constant, or two floats, the first in the lower half.
    u64 value;
};

struct Elementwise {
    Instruction code[instructions_max];
    i64 stride[inputs_max][dimensions_max];  // innermost first, in elements; 0 repeats
    u64 count;
    u32 size[dimensions_max];
    u32 input_type[inputs_max];
    u32 rank, inputs, instructions, output_type;
};
static_assert(sizeof(Instruction) == 16 && sizeof(Elementwise) == 976, "as the launch description writes it");

__device__ __forceinline__ float low_half(u64 value) { return __uint_as_float(u32(value)); }
__device__ __forceinline__ float high_half(u64 value) { return __uint_as_float(u32(value >> 32)); }

// To a type and back.
__device__ __forceinline__ i64 cast(i64 x, u32 type) {
    switch (type) {
        case type_i32: return int(x);
        case type_u8: return u8(x);
        case type_i8: return i8(x);
        case type_bool: return x != 0;
        default: return x;
    }
}
__device__ __forceinline__ float cast(float x, u32 type) {
    switch (type) {
        case type_f32:
        case type_f64: return x;
        case type_f16: return to_f32(of_f32<f16>(x));
        case type_bf16: return to_f32(of_f32<bf16>(x));
        case type_bool: return x != 0.0f;
        default: return float(cast(to_i64(x), type));
    }
}

__device__ __forceinline__ float compute(const Instruction& in, float a, float b, float c) {
    switch (in.code) {
        case code_constant: return low_half(in.value);
        case code_where: return a != 0.0f ? b : c;
        case code_add: return a + b;
        case code_sub: return a - b;
        case code_mul: return a * b;
        case code_div: return a / b;
        case code_pow: return powf(a, b);
        // NaN wins.
        case code_min: return a < b || a != a ? a : b;
        case code_max: return a > b || a != a ? a : b;
        case code_mod: {
            const float rest = fmodf(a, b);
            return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
        }
        case code_fmod: return fmodf(a, b);
        case code_equal: return a == b;
        case code_less: return a < b;
        case code_less_equal: return a <= b;
        case code_greater: return a > b;
        case code_greater_equal: return a >= b;
        case code_and: return a != 0.0f && b != 0.0f;
        case code_or: return a != 0.0f || b != 0.0f;
        case code_xor: return (a != 0.0f) != (b != 0.0f);
        case code_not: return a == 0.0f;
        case code_neg: return -a;
        case code_abs: return fabsf(a);
        case code_sign: return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a;
        case code_cast: return cast(a, in.kind);
        case code_sqrt: return sqrtf(a);
        case code_rsqrt: return 1.0f / sqrtf(a);
        case code_reciprocal: return 1.0f / a;
        case code_exp: return expf(a);
        case code_log: return logf(a);
        case code_erf: return erff(a);
        case code_sin: return sinf(a);
        case code_cos: return cosf(a);
        case code_floor: return floorf(a);
        case code_ceil: return ceilf(a);
        case code_round: return rintf(a);
        case code_is_nan: return a != a;
        case code_activate: return activate(a, {in.kind, low_half(in.value), high_half(in.value)});
        default: return a;
    }
}

__device__ __forceinline__ i64 power(i64 base, i64 exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    u64 result = 1, factor = u64(base);
    for (; exponent > 0; exponent >>= 1, factor *= factor)
        if (exponent & 1) result *= factor;
    return i64(result);
}

// Sums and products wrap around; what is divided by zero becomes zero, since a device has no exception for it.
__device__ __forceinline__ i64 compute(const Instruction& in, i64 a, i64 b, i64 c) {
    switch (in.code) {
        case code_constant: return i64(in.value);
        case code_where: return a != 0 ? b : c;
        case code_add: return i64(u64(a) + u64(b));
        case code_sub: return i64(u64(a) - u64(b));
        case code_mul: return i64(u64(a) * u64(b));
        case code_div: return b == 0 ? 0 : b == -1 ? i64(0 - u64(a)) : a / b;
        case code_pow: return power(a, b);
        case code_min: return a < b ? a : b;
        case code_max: return a > b ? a : b;
        case code_mod:
        case code_fmod: {
            if (b == 0 || b == -1) return 0;
            const i64 rest = a % b;
            return in.code == code_mod && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
        }
        case code_equal: return a == b;
        case code_less: return a < b;
        case code_less_equal: return a <= b;
        case code_greater: return a > b;
        case code_greater_equal: return a >= b;
        case code_and: return a != 0 && b != 0;
        case code_or: return a != 0 || b != 0;
        case code_xor: return (a != 0) != (b != 0);
        case code_not: return a == 0;
        case code_neg: return i64(0 - u64(a));
        case code_abs: return a < 0 ? i64(0 - u64(a)) : a;
        case code_sign: return a > 0 ? 1 : a < 0 ? -1 : 0;
        case code_cast: return cast(a, in.kind);
        default: return a;
    }
}

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
