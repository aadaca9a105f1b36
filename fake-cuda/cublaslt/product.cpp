// Computation of a matrix product. Sums are in another order than in Weir's kernels, as in the real
// library.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cublaslt.h"

static float of_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (std::isnan(value)) return 0x7fff;
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Round to 10 bits of fraction.
static float to_tf32(float value) {
    if (!std::isfinite(value)) return value;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x1000) & ~uint32_t(0x1fff);
    memcpy(&value, &bits, 4);
    return value;
}

static float load(int32_t type, uint64_t at, uint64_t index) {
    if (type == R_32F) return reinterpret_cast<const float*>(at)[index];
    if (type == R_16F) return float(reinterpret_cast<const _Float16*>(at)[index]);
    return of_bf16(reinterpret_cast<const uint16_t*>(at)[index]);
}

static void store(int32_t type, uint64_t at, uint64_t index, float value) {
    if (type == R_32F) reinterpret_cast<float*>(at)[index] = value;
    else if (type == R_16F) reinterpret_cast<_Float16*>(at)[index] = _Float16(value);
    else reinterpret_cast<uint16_t*>(at)[index] = to_bf16(value);
}

// Lines of length k: the rows of a left matrix, or the columns of a right one.
static std::vector<float> lines(const Layout& layout, uint64_t at, uint64_t batch, bool along_columns, uint64_t count, uint64_t k, bool tf32) {
    std::vector<float> made(count * k);
    for (uint64_t line = 0; line < count; line++) {
        for (uint64_t i = 0; i < k; i++) {
            const uint64_t index = along_columns ? line * uint64_t(layout.stride) + i : i * uint64_t(layout.stride) + line;
            const float value = load(layout.type, at, batch * uint64_t(layout.batch_stride) + index);
            made[line * k + i] = tf32 ? to_tf32(value) : value;
        }
    }
    return made;
}

static float dot(const float* a, const float* b, uint64_t k) {
    float sums[4] = {};
    for (uint64_t i = 0; i < k; i++) sums[i % 4] += a[i] * b[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void compute(const Product& product) {
    const Descriptor& descriptor = product.descriptor;
    const bool tf32 = descriptor.compute == COMPUTE_32F_FAST_TF32 && product.a.type == R_32F;
    const uint64_t m = product.d.rows, n = product.d.columns, k = descriptor.transpose[0] ? product.a.rows : product.a.columns;
    // Overwrite the workspace, so that a caller that keeps data there fails.
    memset(reinterpret_cast<void*>(product.workspace), 0xff, product.workspace_bytes);
    for (uint64_t batch = 0; batch < uint64_t(product.d.batch); batch++) {
        const std::vector<float> a = lines(product.a, product.at_a, batch, descriptor.transpose[0] != 0, m, k, tf32);
        const std::vector<float> b = lines(product.b, product.at_b, batch, descriptor.transpose[1] == 0, n, k, tf32);
        for (uint64_t column = 0; column < n; column++) {
            for (uint64_t row = 0; row < m; row++) {
                float y = product.alpha * dot(&a[row * k], &b[column * k], k);
                // With beta 0, c is not read.
                if (product.beta != 0) {
                    const uint64_t at = batch * uint64_t(product.c.batch_stride) + column * uint64_t(product.c.stride) + row;
                    y += product.beta * load(product.c.type, product.at_c, at);
                }
                if (descriptor.epilogue & EPILOGUE_BIAS) y += load(product.d.type, descriptor.bias, row);
                if (descriptor.epilogue & EPILOGUE_RELU) y = std::max(y, 0.0f);
                store(product.d.type, product.at_d, batch * uint64_t(product.d.batch_stride) + column * uint64_t(product.d.stride) + row, y);
            }
        }
    }
}
