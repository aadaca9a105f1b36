// Epilogue of a product: operations on the sums, and their stores.
#pragma once
#include "prelude.cuh"

// Destination and epilogue of a product: y = activation(scale (alpha c + bias) + shift + residual).
// `z` counts matrices of a batch, or groups of channels. Columns of a convolution are the pixels of
// one image after the other.
struct Output {
    u64 z_stride, image_stride;
    u32 m, n;
    u32 image_columns;
    // Of the vectors: whether they run along columns rather than rows, their elements per z, and
    // their type.
    u32 vectors_along_n, vector_z_stride, vector_type;
    float alpha;
    Activation activation;
};
static_assert(sizeof(Output) == 56, "as the launch description writes it");

template <class T>
struct Epilogue {
    T* to;
    const void *bias, *scale, *shift;
    const T* residual;
    // Destination of unfinished f32 sums, one part of k after the other; null without parts.
    float* parts;
    u64 part;
};

__device__ __forceinline__ float load_vector(const void* from, i64 i, u32 type) {
    if (type == type_f32) return static_cast<const float*>(from)[i];
    return type == type_f16 ? to_f32(static_cast<const f16*>(from)[i]) : to_f32(static_cast<const bf16*>(from)[i]);
}

// Factors and summands of `lanes` neighbouring columns, if vectors run along columns.
template <int lanes>
struct Columns {
    float bias[lanes], scale[lanes], shift[lanes];

    template <class T>
    __device__ __forceinline__ Columns(const Output& output, const Epilogue<T>& epilogue, u32 n) {
#pragma unroll
        for (int lane = 0; lane < lanes; lane++) {
            const bool there = output.vectors_along_n && n + lane < output.n;
            bias[lane] = there && epilogue.bias != nullptr ? load_vector(epilogue.bias, n + lane, output.vector_type) : 0.0f;
            scale[lane] = there && epilogue.scale != nullptr ? load_vector(epilogue.scale, n + lane, output.vector_type) : 1.0f;
            shift[lane] = there && epilogue.shift != nullptr ? load_vector(epilogue.shift, n + lane, output.vector_type) : 0.0f;
        }
    }
};

// Store the sums of `lanes` neighbours of row m, from column n on. `n` is a multiple of `lanes`.
template <class T, int lanes>
__device__ __forceinline__ void complete(const Output& output, const Epilogue<T>& epilogue, u32 z, u32 m, u32 n, const float (&sums)[lanes],
                                         const Columns<lanes>& columns) {
    if (m >= output.m || n >= output.n) return;
    if (epilogue.parts != nullptr) {
        float* const to = epilogue.parts + (epilogue.part * output.m + m) * output.n + n;
#pragma unroll
        for (int lane = 0; lane < lanes; lane++)
            if (n + lane < output.n) to[lane] = sums[lane];
        return;
    }
    const u32 image = output.n <= output.image_columns ? 0 : n / output.image_columns;
    u32 column = n - image * output.image_columns;
    u64 line = z * output.z_stride + image * output.image_stride + u64(m) * output.image_columns;
    float bias = 0.0f, scale = 1.0f, shift = 0.0f;
    if (!output.vectors_along_n) {
        const i64 at = i64(z) * output.vector_z_stride + m;
        if (epilogue.bias != nullptr) bias = load_vector(epilogue.bias, at, output.vector_type);
        if (epilogue.scale != nullptr) scale = load_vector(epilogue.scale, at, output.vector_type);
        if (epilogue.shift != nullptr) shift = load_vector(epilogue.shift, at, output.vector_type);
    }
    const auto value = [&](int lane) {
        const float sum = sums[lane] * output.alpha;
        if (!output.vectors_along_n) return (sum + bias) * scale + shift;
        return (sum + columns.bias[lane]) * columns.scale[lane] + columns.shift[lane];
    };
    typedef Pack<T, lanes> Packed;
    if (lanes > 1 && output.image_columns % lanes == 0) {
        // The neighbours are in one line, at an aligned address.
        Packed packed, residual;
        if (epilogue.residual != nullptr) residual = *reinterpret_cast<const Packed*>(epilogue.residual + line + column);
#pragma unroll
        for (int lane = 0; lane < lanes; lane++) {
            const float sum = value(lane) + (epilogue.residual == nullptr ? 0.0f : to_f32(residual.of[lane]));
            from_f32(packed.of[lane], activate(sum, output.activation));
        }
        *reinterpret_cast<Packed*>(epilogue.to + line + column) = packed;
        return;
    }
#pragma unroll
    for (int lane = 0; lane < lanes; lane++) {
        if (n + lane >= output.n) break;
        float sum = value(lane);
        if (epilogue.residual != nullptr) sum += to_f32(epilogue.residual[line + column]);
        from_f32(epilogue.to[line + column], activate(sum, output.activation));
        if (++column == output.image_columns) {
            column = 0;
            line += output.image_stride;
        }
    }
}

template <class T, int lanes>
__device__ __forceinline__ void complete(const Output& output, const Epilogue<T>& epilogue, u32 z, u32 m, u32 n, const float (&sums)[lanes]) {
    complete(output, epilogue, z, m, n, sums, Columns<lanes>(output, epilogue, n));
}

// Store a block's tile. The tile passes through shared memory, so that neighbouring threads store
// neighbouring elements, and so that the code of the epilogue exists once rather than once per sum
// of a thread.
template <class S, class T, class Math>
__device__ __forceinline__ void finish(void* shared, const Math& math, const Output& output, const Epilogue<T>& epilogue, u32 z, u32 first_m,
                                       u32 first_n) {
    constexpr int rows = S::m < 64 ? S::m : 64, stride = S::n + 4, lanes = 4, packs = S::n / lanes;
    static_assert(S::threads % packs == 0, "a thread stores the same columns of several rows");
    // Large blocks have few registers left.
    constexpr int together = S::threads > 128 ? 1 : 2;
    float* const tile = static_cast<float*>(shared);
    const int column = threadIdx.x % packs * lanes;
    const Columns<lanes> columns(output, epilogue, first_n + column);
#pragma unroll 1
    for (int first = 0; first < S::m; first += rows) {
        // All threads have finished with the ring, or with the previous rows.
        __syncthreads();
        math.template put<rows, stride>(tile, first);
        __syncthreads();
#pragma unroll together
        for (int row = threadIdx.x / packs; row < rows; row += S::threads / packs) {
            const Pack<float, lanes> four = *reinterpret_cast<const Pack<float, lanes>*>(tile + row * stride + column);
            complete(output, epilogue, z, first_m + first + row, first_n + column, four.of, columns);
        }
    }
}
