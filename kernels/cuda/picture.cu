// Image operations on batch by channels by height by width: pooling (also of images whose channels
// are last), local response normalisation, resizing.
#include "prelude.cuh"

struct PoolShape {
    u64 count;
    u32 height, width, out_height, out_width;
    u32 kernel_h, kernel_w, stride_h, stride_w;
    i32 pad_top, pad_left, pad_bottom, pad_right;
    u32 dilation_h, dilation_w;
    // 0: the maximum; 1: the mean of the elements inside the image; 2: the mean of the elements
    // inside the padded image.
    u32 kind;
    // Number of channels between neighbours of a line: 1 for channels by height by width, all for
    // height by width by channels.
    u32 channels;
};
static_assert(sizeof(PoolShape) == 72, "as the launch description writes it");

// Each thread pools `lanes` neighbouring channels, which divide all channels.
template <class T, int lanes>
__device__ __forceinline__ void pool(T* to, const T* from, const PoolShape& shape) {
    typedef Pack<T, lanes> Packed;
    const u32 packs = shape.channels / lanes;
    for (u64 i = first_element(); i < shape.count / lanes; i += element_step()) {
        const u32 pixel = u32(i) / packs, channel = (u32(i) - pixel * packs) * lanes;
        const u32 line = pixel / shape.out_width, column = pixel - line * shape.out_width;
        const u32 picture = line / shape.out_height, row = line - picture * shape.out_height;
        const T* const x = from + u64(picture) * shape.height * shape.width * shape.channels + channel;
        const int top = int(row * shape.stride_h) - shape.pad_top, left = int(column * shape.stride_w) - shape.pad_left;
        float most[lanes], sum[lanes];
#pragma unroll
        for (int lane = 0; lane < lanes; lane++) {
            most[lane] = Max::none<float>();
            sum[lane] = 0.0f;
        }
        u32 inside = 0, padded = 0;
        for (u32 h = 0; h < shape.kernel_h; h++) {
            const int y = top + int(h * shape.dilation_h);
            if (y >= int(shape.height) + shape.pad_bottom) break;
            for (u32 w = 0; w < shape.kernel_w; w++) {
                const int place = left + int(w * shape.dilation_w);
                if (place >= int(shape.width) + shape.pad_right) break;
                padded++;
                if (u32(y) >= shape.height || u32(place) >= shape.width) continue;
                inside++;
                const Packed pack = *reinterpret_cast<const Packed*>(x + u64(u32(y) * shape.width + u32(place)) * shape.channels);
#pragma unroll
                for (int lane = 0; lane < lanes; lane++) {
                    const float value = to_f32(pack.of[lane]);
                    most[lane] = Max::of(value, most[lane]);
                    sum[lane] += value;
                }
            }
        }
        const u32 divisor = shape.kind == 2 ? padded : inside;
        Packed pack;
#pragma unroll
        for (int lane = 0; lane < lanes; lane++)
            from_f32(pack.of[lane], shape.kind == 0 ? most[lane] : divisor == 0 ? 0.0f : sum[lane] / float(divisor));
        reinterpret_cast<Packed*>(to)[i] = pack;
    }
}

// y = x / (bias + alpha / size sum of squares)^beta, over the neighbouring channels (Krizhevsky et
// al., "ImageNet Classification with Deep Convolutional Neural Networks", section 3.3). `below` of
// them come before the channel.
template <class T>
__device__ __forceinline__ void lrn(T* to, const T* from, u64 count, u32 channels, u32 pixels, u32 size, float alpha, float beta, float bias) {
    const u32 below = (size - 1) / 2, above = size / 2;
    for (u64 i = first_element(); i < count; i += element_step()) {
        const u32 channel = u32(i) / pixels % channels;
        const u32 first = channel < below ? 0 : channel - below, last = min(channel + above, channels - 1);
        float squares = 0.0f;
        for (u32 c = first; c <= last; c++) {
            const float value = to_f32(from[i64(i) + (i64(c) - channel) * pixels]);
            squares += value * value;
        }
        from_f32(to[i], to_f32(from[i]) * powf(bias + alpha / float(size) * squares, -beta));
    }
}

struct ResizeShape {
    u64 count;
    u32 height, width, out_height, out_width;
    float scale_h, scale_w;
    // Codes of the launch description.
    u32 coordinates, nearest, linear;
};
static_assert(sizeof(ResizeShape) == 48, "as the launch description writes it");

// Source coordinate of element `i` of `out`, in an image of `in` elements:
// coordinate_transformation_mode of ONNX's Resize.
__device__ __forceinline__ float source(u32 coordinates, u32 i, u32 in, u32 out, float scale) {
    const float at = float(i);
    switch (coordinates) {
        case 0: return (at + 0.5f) / scale - 0.5f;
        case 1: return float(in) * 0.5f * (1.0f - float(out) / (scale * float(in))) + (at + 0.5f) / scale - 0.5f;
        case 2: return out == 1 ? 0.0f : (at + 0.5f) / scale - 0.5f;
        case 3: return out == 1 ? 0.0f : at * float(in - 1) / float(out - 1);
        case 4: return at / scale;
        default: return (at + 0.5f) / scale;
    }
}

__device__ __forceinline__ u32 clamped(float x, u32 size) { return u32(clip(x, 0.0f, float(size - 1))); }

__device__ __forceinline__ u32 nearest_of(u32 nearest, float x, u32 size) {
    switch (nearest) {
        case 0: return clamped(ceilf(x - 0.5f), size);
        case 1: return clamped(floorf(x + 0.5f), size);
        case 2: return clamped(floorf(x), size);
        default: return clamped(ceilf(x), size);
    }
}

template <class T>
__device__ __forceinline__ void resize(T* to, const T* from, const ResizeShape& shape) {
    for (u64 i = first_element(); i < shape.count; i += element_step()) {
        const u32 line = u32(i) / shape.out_width, column = u32(i) - line * shape.out_width;
        const u32 picture = line / shape.out_height, row = line - picture * shape.out_height;
        const T* const x = from + u64(picture) * shape.height * shape.width;
        float down = source(shape.coordinates, row, shape.height, shape.out_height, shape.scale_h);
        float right = source(shape.coordinates, column, shape.width, shape.out_width, shape.scale_w);
        if (!shape.linear) {
            const u32 y = nearest_of(shape.nearest, down, shape.height), place = nearest_of(shape.nearest, right, shape.width);
            to[i] = x[u64(y) * shape.width + place];
            continue;
        }
        down = clip(down, 0.0f, float(shape.height - 1));
        right = clip(right, 0.0f, float(shape.width - 1));
        const u32 top = u32(down), bottom = min(top + 1, shape.height - 1), near = u32(right), far = min(near + 1, shape.width - 1);
        const float low = down - float(top), across = right - float(near);
        const auto between = [&](u32 y) {
            const float a = to_f32(x[u64(y) * shape.width + near]), b = to_f32(x[u64(y) * shape.width + far]);
            return a + (b - a) * across;
        };
        const float above = between(top), below = between(bottom);
        from_f32(to[i], above + (below - above) * low);
    }
}

#define PICTURE(type, T)                                                                                                            \
    KERNEL(pool_##type, (256), T* to, const T* from, PoolShape shape) { pool<T, 1>(to, from, shape); }                              \
    KERNEL(pool_packed_##type, (256), T* to, const T* from, PoolShape shape) { pool<T, 16 / sizeof(T)>(to, from, shape); }          \
    KERNEL(lrn_##type, (256), T* to, const T* from, u64 count, u32 channels, u32 pixels, u32 size, float alpha, float beta, float bias) { \
        lrn(to, from, count, channels, pixels, size, alpha, beta, bias);                                                            \
    }                                                                                                                               \
    KERNEL(resize_##type, (256), T* to, const T* from, ResizeShape shape) { resize(to, from, shape); }
PICTURE(f32, float)
PICTURE(f16, f16)
PICTURE(bf16, bf16)
