// Convolution in f32 on scalar units, on any device; and a direct kernel for groups of few
// channels.
#include "conv.cuh"
#include "windows.cuh"

CONVS(f32, float, Plain)
CONV_WINDOWS(f32_large, float, Large, Plain)
CONV_WINDOWS(f32_medium, float, Medium, Plain)
CONV_WINDOWS(f32_small, float, Small, Plain)
// Half-precision kernels for devices without tensor cores for f16 and bf16.
#if !defined(__CUDACC__) || __CUDA_ARCH__ < 800
CONVS_MEDIUM(f16, f16, Plain)
CONVS_MEDIUM(bf16, bf16, Plain)
CONV_WINDOWS(f16_medium, f16, Medium, Plain)
CONV_WINDOWS(bf16_medium, bf16, Medium, Plain)
#endif

// One thread per output pixel, and one channel per block: for depthwise convolution, and for groups
// so small that tiles would be mostly empty. Grid: pixels, channels, images.
template <class T>
__device__ __forceinline__ void conv_direct(T* to, const T* x, const T* w, const void* bias, const void* scale, const void* shift,
                                            const T* residual, const ConvShape& shape) {
    const u32 pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= shape.out_pixels) return;
    const u32 group = blockIdx.y / shape.output.m, m = blockIdx.y - group * shape.output.m;
    const int y = int(pixel / shape.out_width * shape.stride_h) - shape.pad_h;
    const int x0 = int(pixel % shape.out_width * shape.stride_w) - shape.pad_w;
    const u64 area = u64(shape.height) * shape.width;
    const u32 channels = shape.k / shape.kernel_area, kernel_h = shape.kernel_area / shape.kernel_w;
    const T* filter = w + u64(blockIdx.y) * shape.k;
    for (u32 image = blockIdx.z; image < shape.images; image += gridDim.z) {
        const T* picture = x + image * shape.image_stride + group * shape.group_stride;
        float sum[1] = {};
        for (u32 channel = 0, at = 0; channel < channels; channel++)
            for (u32 row = 0; row < kernel_h; row++) {
                const int line = y + int(row * shape.dilation_h);
                for (u32 column = 0; column < shape.kernel_w; column++, at++) {
                    const int place = x0 + int(column * shape.dilation_w);
                    if (u32(line) >= shape.height || u32(place) >= shape.width) continue;
                    sum[0] += to_f32(filter[at]) * to_f32(picture[channel * area + u64(line) * shape.width + place]);
                }
            }
        const Epilogue<T> epilogue = {to, bias, scale, shift, residual, nullptr, 0};
        complete(shape.output, epilogue, group, m, image * shape.out_pixels + pixel, sum);
    }
}

#define CONV_DIRECT(type, T)                                                                                                  \
    KERNEL(conv_direct_##type, (128), T* to, const T* x, const T* w, const void* bias, const void* scale, const void* shift, \
           const T* residual, ConvShape shape) {                                                                             \
        conv_direct(to, x, w, bias, scale, shift, residual, shape);                                                          \
    }
CONV_DIRECT(f32, float)
CONV_DIRECT(f16, f16)
CONV_DIRECT(bf16, bf16)
