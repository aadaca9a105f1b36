// Prelude of every kernel file: element types, activations, and reductions over a warp or a block.
// No CUDA header is used, so that NVRTC can compile these files alone, and the emulator can compile
// them for the CPU.
#pragma once

#ifdef __CUDACC__
#include "instructions.cuh"
#endif

typedef unsigned char u8;
typedef signed char i8;
typedef int i32;
typedef long long i64;
typedef unsigned long long u64;

constexpr u32 all_lanes = 0xffffffffu;

// Storage types whose arithmetic is in f32.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

__device__ __forceinline__ float to_f32(float value) { return value; }
__device__ __forceinline__ float to_f32(f16 value) { return f16_to_f32(value.bits); }
__device__ __forceinline__ float to_f32(bf16 value) { return bf16_to_f32(value.bits); }
__device__ __forceinline__ void from_f32(float& to, float value) { to = value; }
__device__ __forceinline__ void from_f32(f16& to, float value) { to.bits = f32_to_f16(value); }
__device__ __forceinline__ void from_f32(bf16& to, float value) { to.bits = f32_to_bf16(value); }

template <class T>
__device__ __forceinline__ T of_f32(float value) {
    T to;
    from_f32(to, value);
    return to;
}

// `count` elements that are read and written at once, at an aligned address.
template <class T, int count>
struct __align__(sizeof(T) * count) Pack {
    T of[count];
};

// Codes of element types; the launch description uses the same.
enum Type : u32 { type_f32 = 0, type_f16 = 1, type_bf16 = 2, type_i64 = 3, type_i32 = 4, type_u8 = 5, type_i8 = 6, type_bool = 7, type_f64 = 8 };

// Element `i` of a buffer whose type is known at run time, and is the same for all threads.
__device__ __forceinline__ float load_f32(const void* from, i64 i, u32 type) {
    switch (type) {
        case type_f32: return static_cast<const float*>(from)[i];
        case type_f16: return to_f32(static_cast<const f16*>(from)[i]);
        case type_bf16: return to_f32(static_cast<const bf16*>(from)[i]);
        case type_i64: return float(static_cast<const i64*>(from)[i]);
        case type_i32: return float(static_cast<const int*>(from)[i]);
        case type_i8: return float(static_cast<const i8*>(from)[i]);
        case type_bool: return static_cast<const u8*>(from)[i] != 0 ? 1.0f : 0.0f;
        case type_f64: return float(static_cast<const double*>(from)[i]);
        default: return float(static_cast<const u8*>(from)[i]);
    }
}
// Truncates the fraction; saturates to the range of i64, and maps NaN to 0.
__device__ __forceinline__ i64 to_i64(float x) {
    if (x != x) return 0;
    if (x >= 9.2233720368547758e18f) return 0x7fffffffffffffffLL;
    if (x <= -9.2233720368547758e18f) return -0x7fffffffffffffffLL - 1;
    return i64(x);
}
__device__ __forceinline__ i64 load_i64(const void* from, i64 i, u32 type) {
    switch (type) {
        case type_i64: return static_cast<const i64*>(from)[i];
        case type_i32: return static_cast<const int*>(from)[i];
        case type_i8: return static_cast<const i8*>(from)[i];
        case type_f32:
        case type_f16:
        case type_bf16:
        case type_f64: return to_i64(load_f32(from, i, type));
        case type_bool: return static_cast<const u8*>(from)[i] != 0;
        default: return static_cast<const u8*>(from)[i];
    }
}
__device__ __forceinline__ void store_i64(void* to, i64 i, u32 type, i64 value) {
    switch (type) {
        case type_i64: static_cast<i64*>(to)[i] = value; break;
        case type_i32: static_cast<int*>(to)[i] = int(value); break;
        case type_bool: static_cast<u8*>(to)[i] = value != 0; break;
        case type_f32: static_cast<float*>(to)[i] = float(value); break;
        case type_f16: static_cast<f16*>(to)[i] = of_f32<f16>(float(value)); break;
        case type_bf16: static_cast<bf16*>(to)[i] = of_f32<bf16>(float(value)); break;
        case type_f64: static_cast<double*>(to)[i] = double(value); break;
        default: static_cast<u8*>(to)[i] = u8(value); break;
    }
}
__device__ __forceinline__ void store_f32(void* to, i64 i, u32 type, float value) {
    switch (type) {
        case type_f32: static_cast<float*>(to)[i] = value; break;
        case type_f16: static_cast<f16*>(to)[i] = of_f32<f16>(value); break;
        case type_bf16: static_cast<bf16*>(to)[i] = of_f32<bf16>(value); break;
        case type_f64: static_cast<double*>(to)[i] = double(value); break;
        case type_bool: static_cast<u8*>(to)[i] = value != 0.0f; break;
        default: store_i64(to, i, type, to_i64(value)); break;
    }
}

// Codes of activations in an epilogue; the launch description uses the same.
enum ActivationKind : u32 {
    activation_none = 0,
    activation_relu = 1,
    activation_leaky_relu = 2,   // alpha: the slope below zero
    activation_clip = 3,         // alpha and beta: the bounds
    activation_sigmoid = 4,
    activation_tanh = 5,
    activation_silu = 6,
    activation_hard_sigmoid = 7, // alpha x + beta, between 0 and 1
    activation_hard_swish = 8,
    activation_gelu = 9,
    activation_gelu_tanh = 10,
    activation_softplus = 11,
};

struct Activation {
    u32 kind;
    float alpha;
    float beta;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
// NaN stays NaN, as in ONNX: comparisons with NaN are false.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float clip(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// Activations of more than a few instructions: a separate function, not inlined by default, since
// epilogues are in many kernels; inlined where the activation is known before the kernel is
// compiled.
#ifndef SMOOTHLY
#define SMOOTHLY __noinline__
#endif
__device__ SMOOTHLY float activate_smoothly(float x, u32 kind, float alpha, float beta) {
    switch (kind) {
        case activation_sigmoid: return sigmoid(x);
        case activation_tanh: return tanhf(x);
        case activation_silu: return x * sigmoid(x);
        case activation_hard_sigmoid: return clip(alpha * x + beta, 0.0f, 1.0f);
        case activation_hard_swish: return x * clip(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f);
        case activation_gelu: return gelu(x);
        case activation_gelu_tanh: return gelu_tanh(x);
        case activation_softplus: return x > 20.0f ? x : log1pf(expf(x));
        default: return x;
    }
}

__device__ __forceinline__ float activate(float x, const Activation& activation) {
    switch (activation.kind) {
        case activation_none: return x;
        case activation_relu: return relu(x);
        case activation_leaky_relu: return x < 0.0f ? activation.alpha * x : x;
        case activation_clip: return clip(x, activation.alpha, activation.beta);
        default: return activate_smoothly(x, activation.kind, activation.alpha, activation.beta);
    }
}

// Ways to reduce many values to one.
struct Sum {
    template <class T>
    __device__ static __forceinline__ T none() {
        return T(0);
    }
    template <class T>
    __device__ static __forceinline__ T of(T a, T b) {
        return a + b;
    }
};
struct Max {
    template <class T>
    __device__ static __forceinline__ T none() {
        return __int_as_float(int(0xff800000));
    }
    // NaN takes precedence.
    template <class T>
    __device__ static __forceinline__ T of(T a, T b) {
        return a > b || a != a ? a : b;
    }
};

// Reduce the values of all lanes of a warp; every lane gets the result.
template <class Way, class T>
__device__ __forceinline__ T over_warp(T value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) value = Way::of(value, __shfl_xor_sync(all_lanes, value, mask));
    return value;
}

constexpr int dimensions_max = 6;

// Loop over elements by all threads of a grid.
__device__ __forceinline__ u64 first_element() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 element_step() { return u64(gridDim.x) * blockDim.x; }
