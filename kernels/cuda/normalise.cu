// Softmax and layer normalisation of the rows of a matrix.
#include "rows.cuh"

// Softmax of scale x + mask in two passes; the first computes both the maximum and the sum (Milakov
// and Gimelshein, arXiv:1805.02867).
template <class T>
__device__ __forceinline__ void softmax(T* to, const T* from, const T* mask, u32 rows, u32 cols, float scale, u32 log, const MaskShape& shape) {
    typedef float Part[32];
    SHARED(Part, part);
    const Crew who = crew();
    // Warps past the last row repeat its work.
    const u32 row = min(who.row, rows - 1);
    const T* const line = from + u64(row) * cols;
    const T* const added = mask == nullptr ? nullptr : mask + mask_row(shape, row);
    const auto value = [&](u32 i) {
        const float x = scale * to_f32(line[i]);
        return added == nullptr ? x : x + to_f32(added[i * shape.stride[0]]);
    };

    float most = Max::none<float>(), sum = 0.0f;
#pragma unroll 4
    for (u32 i = who.member; i < cols; i += who.members) {
        const float x = value(i), larger = Max::of(most, x);
        // All elements so far are negative infinity: there is no sum to scale.
        sum = (sum == 0.0f ? 0.0f : sum * expf(most - larger)) + (x == larger ? 1.0f : expf(x - larger));
        most = larger;
    }
    const float row_most = over_crew<Max>(who, most, part);
    const float row_sum = over_crew<Sum>(who, sum == 0.0f ? 0.0f : sum * expf(most - row_most), part);
    if (who.row >= rows) return;
    T* const out = to + u64(row) * cols;
    const float factor = 1.0f / row_sum, less = logf(row_sum);
#pragma unroll 4
    for (u32 i = who.member; i < cols; i += who.members) {
        const float x = value(i) - row_most;
        from_f32(out[i], log ? x - less : expf(x) * factor);
    }
}

#define SOFTMAX(type, T)                                                                                                     \
    KERNEL(softmax_##type, (1024), T* to, const T* from, const T* mask, u32 rows, u32 cols, float scale, u32 log, MaskShape shape) { \
        softmax(to, from, mask, rows, cols, scale, log, shape);                                                              \
    }
SOFTMAX(f32, float)
SOFTMAX(f16, f16)
SOFTMAX(bf16, bf16)

// Layer normalisation of x, or of x + residual, which is also stored on request. A row stays in
// shared memory between passes if it fits (`kept`), and is read again otherwise.
template <class T>
__device__ __forceinline__ void layer_norm(T* to, T* sums, const T* x, const T* residual, const void* gamma, const void* beta,
                                           u32 vector_type, u32 cols, float epsilon, u32 kept) {
    typedef float Part[32];
    SHARED(Part, part);
    DYNAMIC_SHARED(float, keep);
    const Crew who = {blockIdx.x, threadIdx.x, blockDim.x, false};
    const u64 line = u64(blockIdx.x) * cols;
    const auto value = [&](u32 i) {
        const float v = to_f32(x[line + i]);
        return residual == nullptr ? v : v + to_f32(residual[line + i]);
    };
    const auto again = [&](u32 i) { return kept ? keep[i] : value(i); };

    float sum = 0.0f;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
        const float v = value(i);
        if (kept) keep[i] = v;
        if (sums != nullptr) from_f32(sums[line + i], v);
        sum += v;
    }
    // A thread reads back only the elements that it wrote.
    const float mean = over_crew<Sum>(who, sum, part) / float(cols);
    float squares = 0.0f;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
        const float away = again(i) - mean;
        squares += away * away;
    }
    const float factor = rsqrtf(over_crew<Sum>(who, squares, part) / float(cols) + epsilon);
#pragma unroll 4
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
        float v = (again(i) - mean) * factor;
        if (gamma != nullptr) v *= load_f32(gamma, i, vector_type);
        if (beta != nullptr) v += load_f32(beta, i, vector_type);
        from_f32(to[line + i], v);
    }
}

#define LAYER_NORM(type, T)                                                                                                          \
    KERNEL(layer_norm_##type, (1024), T* to, T* sums, const T* x, const T* residual, const void* gamma, const void* beta,            \
           u32 vector_type, u32 cols, float epsilon, u32 kept) {                                                                     \
        layer_norm(to, sums, x, residual, gamma, beta, vector_type, cols, epsilon, kept);                                            \
    }
LAYER_NORM(f32, float)
LAYER_NORM(f16, f16)
LAYER_NORM(bf16, bf16)
