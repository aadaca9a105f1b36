// Two-dimensional convolution on NCHW as a product of matrices that is never materialised (implicit
// GEMM, Chetlur et al., arXiv:1410.0759). A has a row for each output channel, as the filters lie
// in the file. B has a column for each output pixel of all images, and a line for each element of a
// filter. A block gathers the elements of B from the images as it needs them.
#pragma once
#include "product.cuh"

#include "epilogue.cuh"

struct ConvShape {
    // Strides and sizes of the images, in elements.
    u64 image_stride, group_stride;
    u32 height, width;
    u32 out_width, out_pixels;
    u32 stride_h, stride_w;
    i32 pad_h, pad_w;
    u32 dilation_h, dilation_w;
    u32 kernel_w, kernel_area;
    // Elements of a filter, and the number of them per block: all, or a part.
    u32 k, k_part;
    u32 tiles_m;
    // Whether filters, or rows of pixels, can be read 16 bytes at a time.
    u32 a_packed, b_packed;
    u32 images;
    Output output;
};
static_assert(sizeof(ConvShape) == 144, "as the launch description writes it");

// Position of a filter's element, relative to the pixel of the filter's first element without
// padding.
struct Tap {
    int offset;
    short y, x;
};
// Above every image, for every pixel.
constexpr short nowhere = -0x8000;

// Gathered lines of B: each thread loads one column of several lines. The positions of the lines
// are computed once per block, one step ahead.
template <class T, class L, int threads, int stages>
struct Gathered {
    static constexpr int singles = L::lines * L::length / threads;
    static_assert(L::lines * L::length % threads == 0 && threads % L::length == 0, "threads share a tile evenly");
    static_assert(L::lines <= threads, "a thread works out at most one line");
    typedef Tap Taps[stages][L::lines];

    const ConvShape& shape;
    Taps& taps;
    const T* from;
    int y, x, k_begin, k_end;
    bool valid;
    T held[sizeof(T) == 2 ? singles : 1];

    __device__ __forceinline__ Gathered(const ConvShape& shape, Taps& taps, const T* pictures, u32 first_n, int k_begin, int k_end)
        : shape(shape), taps(taps), k_begin(k_begin), k_end(k_end) {
        const u32 n = first_n + threadIdx.x % L::length;
        valid = n < shape.output.n;
        const u32 image = n / shape.out_pixels, pixel = n - image * shape.out_pixels;
        y = int(pixel / shape.out_width * shape.stride_h);
        x = int(pixel % shape.out_width * shape.stride_w);
        from = pictures + image * shape.image_stride + i64(y) * shape.width + x;
#pragma unroll 1
        for (int step = 0; step < stages; step++) prepare(step);
        __syncthreads();
    }

    __device__ __forceinline__ void prepare(int step) {
        if (threadIdx.x >= L::lines) return;
        const int k = k_begin + step * L::lines + int(threadIdx.x);
        const u32 channel = u32(k) / shape.kernel_area, at = u32(k) - channel * shape.kernel_area;
        const u32 row = at / shape.kernel_w, column = at - row * shape.kernel_w;
        const int down = int(row * shape.dilation_h) - shape.pad_h, right = int(column * shape.dilation_w) - shape.pad_w;
        Tap tap;
        tap.offset = int(channel * shape.height * shape.width) + down * int(shape.width) + right;
        tap.y = k < k_end ? short(down) : nowhere;
        tap.x = short(right);
        taps[step % stages][threadIdx.x] = tap;
    }

    __device__ __forceinline__ void fetch(T* tile, int k) {
        const int step = (k - k_begin) / L::lines, line = threadIdx.x / L::length;
        const Tap* const lines = taps[step % stages] + line;
        T* const to = tile + line * L::stride + threadIdx.x % L::length;
#pragma unroll
        for (int single = 0; single < singles; single++) {
            const Tap tap = lines[single * (threads / L::length)];
            const bool here = valid && u32(y + tap.y) < shape.height && u32(x + tap.x) < shape.width;
            if constexpr (sizeof(T) == 4)
                copy_async<4>(to + single * (threads / L::length) * L::stride, here ? from + tap.offset : from, here);
            else
                held[single] = here ? from[tap.offset] : T();
        }
        // The first `stages` are prepared in advance. All threads read this buffer for the last
        // time before the previous barrier.
        if (step >= stages - 1) prepare(step + 1);
    }

    __device__ __forceinline__ void keep(T* tile) {
        if constexpr (sizeof(T) == 2) {
            T* const to = tile + threadIdx.x / L::length * L::stride + threadIdx.x % L::length;
#pragma unroll
            for (int single = 0; single < singles; single++) to[single * (threads / L::length) * L::stride] = held[single];
        }
    }
};

// Grid: tiles (rows of C first), parts of k, groups of channels. `pointwise`: filters of one
// element with stride 1 and no padding, so that the images are the matrix.
template <class T, class S, template <class, class, class, class, bool, bool> class Math, bool pointwise>
__device__ __forceinline__ void conv(T* to, const T* x, const T* w, const void* bias, const void* scale, const void* shift,
                                     const T* residual, float* parts, const ConvShape& shape) {
    constexpr int k = S::k_bytes / int(sizeof(T));
    typedef Operand<T, S::m, k, S::threads, true> A;
    typedef Operand<T, S::n, k, S::threads, false> B;
    typedef typename B::Lines Lines;
    DYNAMIC_SHARED(T, shared);
    const u32 group = blockIdx.z;
    const u32 first_m = blockIdx.x % shape.tiles_m * S::m, first_n = blockIdx.x / shape.tiles_m * S::n;
    const u32 k_begin = blockIdx.y * shape.k_part, k_end = min(k_begin + shape.k_part, shape.k);
    const T* const filters = w + u64(group) * shape.output.m * shape.k;
    const T* const pictures = x + group * shape.group_stride;
    auto load_a = A::load(filters, shape.k, first_m, shape.output.m, k_end, shape.a_packed != 0);
    Math<T, S, typename A::Lines, Lines, true, false> math;
    if constexpr (pointwise) {
        const u32 n = first_n + B::Load::place(shape.b_packed != 0), image = n / shape.out_pixels;
        const T* const from = pictures + image * shape.image_stride + (n - image * shape.out_pixels);
        typename B::Load load_b(from, shape.out_pixels, n < shape.output.n, k_end, shape.b_packed != 0);
        multiply<S, typename A::Lines, Lines>(shared, load_a, load_b, int(k_begin), int(k_end), math);
    } else {
        typedef Gathered<T, Lines, S::threads, S::stages> Gather;
        typedef typename Gather::Taps Taps;
        SHARED(Taps, taps);
        Gather load_b(shape, taps, pictures, first_n, int(k_begin), int(k_end));
        multiply<S, typename A::Lines, Lines>(shared, load_a, load_b, int(k_begin), int(k_end), math);
    }
    const Epilogue<T> epilogue = {to, bias, scale, shift, residual, parts, u64(blockIdx.y) * gridDim.z + group};
    finish<S>(shared, math, shape.output, epilogue, group, first_m, first_n);
}

// Minimum number of blocks per multiprocessor: small tiles spill with the assembler's default.
template <class S>
constexpr int conv_blocks_min = S::m == Small::m ? 6 : 0;

#define CONV(name, T, S, Math, pointwise)                                                                                     \
    KERNEL(conv_##name, (S::threads, (conv_blocks_min<S>)), T* to, const T* x, const T* w, const void* bias, const void* scale, const void* shift, \
           const T* residual, float* parts, ConvShape shape) {                                                               \
        conv<T, S, Math, pointwise>(to, x, w, bias, scale, shift, residual, parts, shape);                                   \
    }
// Half precision on scalar units: one tile size.
#define CONVS_MEDIUM(type, T, Math)                        \
    CONV(gathered_##type##_medium, T, Medium, Math, false) \
    CONV(pointwise_##type##_medium, T, Medium, Math, true)
#define CONVS(type, T, Math)                               \
    CONV(gathered_##type##_large, T, Large, Math, false)   \
    CONV(gathered_##type##_medium, T, Medium, Math, false) \
    CONV(gathered_##type##_small, T, Small, Math, false)   \
    CONV(pointwise_##type##_large, T, Large, Math, true)   \
    CONV(pointwise_##type##_medium, T, Medium, Math, true) \
    CONV(pointwise_##type##_small, T, Small, Math, true)
