// Two-dimensional convolution on NHWC as a product of matrices that is never materialised. A has a
// row for each output pixel of all images: the window around the pixel, its channels innermost. B
// has a column for each output channel, as the filters lie in memory: height, width, channels. The
// channels of a pixel are contiguous, so both are read 16 bytes at a time.
#pragma once
#include "product.cuh"

#include "epilogue.cuh"

// Tiles for tensor cores. A warp of 64 rows reads little from shared memory for its
// multiplications.
typedef Tile<128, 128, 64, 2, 4, 4> WindowsLarge;
typedef Tile<128, 64, 64, 2, 2, 4> WindowsTall;

// Minimum number of blocks per multiprocessor: what shared memory allows, and what keeps the small
// tiles from spilling.
template <class T, class S, template <class, class, class, class, bool, bool> class Math>
constexpr int windows_blocks_min = S::m == Small::m                      ? 6
                                   : is_plain<Math> || S::m == Medium::m ? blocks_min<T, S, Math, true, true>
                                                                         : (S::n == WindowsTall::n ? 3 : 2);

struct WindowShape {
    // Elements of an image.
    u64 image_stride;
    u32 height, width, channels;
    u32 out_width, out_pixels;
    u32 stride_h, stride_w;
    i32 pad_h, pad_w;
    u32 dilation_h, dilation_w;
    u32 kernel_w;
    // Elements of a filter, and the number of them per block: all, or a part.
    u32 k, k_part;
    Output output;
};
static_assert(sizeof(WindowShape) == 120, "as the launch description writes it");

// Rows of A: each thread loads the same 16 bytes of several windows. Calls of `fetch` are in the
// order of k.
template <class T, class L, int threads>
struct Windows {
    static constexpr int pack = 16 / sizeof(T);
    static constexpr int packs = L::length / pack, lines = threads / packs, steps = L::lines / lines;
    static_assert(L::lines % lines == 0 && threads % packs == 0, "threads share a tile evenly");

    const WindowShape& shape;
    // The first elements of the thread's windows, and their positions in the image; windows beyond
    // the last pixel are far above the image.
    const T* from[steps];
    int y[steps], x[steps];
    // The thread's next elements of a filter.
    int channel, column, down, right, k_end;

    __device__ __forceinline__ Windows(const WindowShape& shape, const T* images, u32 first_m, u32 k_begin, u32 k_end)
        : shape(shape), k_end(int(k_end)) {
        const u32 at = k_begin + threadIdx.x % packs * pack;
        const u32 tap = at / shape.channels, row = tap / shape.kernel_w;
        channel = int(at - tap * shape.channels);
        column = int(tap - row * shape.kernel_w);
        down = int(row * shape.dilation_h);
        right = column * int(shape.dilation_w);
#pragma unroll
        for (int step = 0; step < steps; step++) {
            const u32 m = first_m + threadIdx.x / packs + step * lines;
            const u32 image = m / shape.out_pixels, pixel = m - image * shape.out_pixels;
            const bool there = m < shape.output.m;
            y[step] = there ? int(pixel / shape.out_width * shape.stride_h) - shape.pad_h : -(1 << 30);
            x[step] = int(pixel % shape.out_width * shape.stride_w) - shape.pad_w;
            from[step] = there ? images + image * shape.image_stride + (i64(y[step]) * shape.width + x[step]) * i64(shape.channels) : images;
        }
    }

    __device__ __forceinline__ void fetch(T* tile, int k) {
        const int at = threadIdx.x % packs * pack;
        const bool inside = k + at < k_end;
        const int offset = (down * int(shape.width) + right) * int(shape.channels) + channel;
        T* const to = tile + threadIdx.x / packs * L::stride + at;
#pragma unroll
        for (int step = 0; step < steps; step++) {
            const bool valid = inside && u32(y[step] + down) < shape.height && u32(x[step] + right) < shape.width;
            // An address outside the images is not read.
            copy_async<16>(to + step * lines * L::stride, from[step] + offset, valid);
        }
        channel += L::length;
        while (channel >= int(shape.channels)) {
            channel -= int(shape.channels);
            right += int(shape.dilation_w);
            if (++column == int(shape.kernel_w)) {
                column = right = 0;
                down += int(shape.dilation_h);
            }
        }
    }

    __device__ __forceinline__ void keep(T*) {}
};

// Grid: tiles of pixels, tiles of output channels, parts of k.
template <class T, class S, template <class, class, class, class, bool, bool> class Math>
__device__ __forceinline__ void conv_windows(T* to, const T* x, const T* w, const void* bias, const void* scale, const void* shift,
                                             const T* residual, float* parts, const WindowShape& shape) {
    constexpr int k = S::k_bytes / int(sizeof(T));
    typedef Layout<T, S::m, k, true> Lines;
    typedef Operand<T, S::n, k, S::threads, true> B;
    DYNAMIC_SHARED(T, shared);
    const u32 first_m = blockIdx.x * S::m, first_n = blockIdx.y * S::n;
    const u32 k_begin = blockIdx.z * shape.k_part, k_end = min(k_begin + shape.k_part, shape.k);
    Windows<T, Lines, S::threads> load_a(shape, x, first_m, k_begin, k_end);
    auto load_b = B::load(w, shape.k, first_n, shape.output.n, k_end, true);
    Math<T, S, Lines, typename B::Lines, true, true> math;
    multiply<S, Lines, typename B::Lines>(shared, load_a, load_b, int(k_begin), int(k_end), math);
    const Epilogue<T> epilogue = {to, bias, scale, shift, residual, parts, blockIdx.z};
    finish<S>(shared, math, shape.output, epilogue, 0, first_m, first_n);
}

#define CONV_WINDOWS(name, T, S, Math)                                                                                    \
    KERNEL(conv_windows_##name, (S::threads, (windows_blocks_min<T, S, Math>)), T* to, const T* x, const T* w,            \
           const void* bias, const void* scale, const void* shift, const T* residual, float* parts, WindowShape shape) { \
        conv_windows<T, S, Math>(to, x, w, bias, scale, shift, residual, parts, shape);                                  \
    }
#define CONVS_WINDOWS_TENSOR(type, T)                  \
    CONV_WINDOWS(type##_large, T, WindowsLarge, Tensor) \
    CONV_WINDOWS(type##_tall, T, WindowsTall, Tensor)   \
    CONV_WINDOWS(type##_medium, T, Medium, Tensor)      \
    CONV_WINDOWS(type##_small, T, Small, Tensor)
