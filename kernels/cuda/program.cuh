// The instructions of elementwise programs, and their semantics on floats and integers.
#pragma once
#include "prelude.cuh"

constexpr int inputs_max = 8;
constexpr int instructions_max = 32;
constexpr int threads = 128;

// Codes of instructions; the launch description uses the same.
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
    // Registers of the result and of the operands.
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

// Convert to a type and back.
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
        // NaN takes precedence.
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

// Sums and products wrap around; division by zero gives zero, since a device does not trap.
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
