// A libcublasLt for tests. It computes on the CPU, in the order of the streams of the fake driver
// beside it, and rejects the same arguments as the real library. Functions that Weir does not call
// are missing.
#include "cublaslt.h"

#include <stdlib.h>

#include <cstring>
#include <memory>
#include <string>

#include "beside.h"

#define CUBLASLT_API extern "C" __attribute__((visibility("default"))) Status

using beside::driver;

namespace {

// A handle, and the device memory that it uses.
struct Handle {
    void* device;
    uint64_t bytes;
};

constexpr uint64_t MARK = 0x5745'4952'4c54'0001;
// Workspace of a product, if the caller's limit allows it.
constexpr uint64_t WORKSPACE_BYTES = 64 << 10;

template <class T>
Status make(T** to, T made) {
    if (to == nullptr) return INVALID_VALUE;
    driver().holds(1);
    *to = new T(made);
    return SUCCESS;
}

template <class T>
Status destroy(T* held) {
    if (held == nullptr) return INVALID_VALUE;
    driver().holds(-1);
    delete held;
    return SUCCESS;
}

// Set an attribute; its size must match the type.
template <class T>
Status set(T& to, const void* from, size_t bytes) {
    if (from == nullptr || bytes != sizeof(T)) return INVALID_VALUE;
    memcpy(&to, from, bytes);
    return SUCCESS;
}

bool known(int32_t type) { return type == R_32F || type == R_16F || type == R_16BF; }

bool fits(const Layout& layout) { return known(layout.type) && layout.rows > 0 && layout.columns > 0 && uint64_t(layout.stride) >= layout.rows && layout.batch > 0; }

// Check the arguments of a product, each alone and against each other.
Status check(const Descriptor& descriptor, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    if (!fits(a) || !fits(b) || !fits(c) || !fits(d)) return INVALID_VALUE;
    if (descriptor.transpose[2] != 0 || descriptor.scale != R_32F) return NOT_SUPPORTED;
    const auto [m, k] = descriptor.transpose[0] ? std::pair(a.columns, a.rows) : std::pair(a.rows, a.columns);
    const auto [k_of_b, n] = descriptor.transpose[1] ? std::pair(b.columns, b.rows) : std::pair(b.rows, b.columns);
    if (k != k_of_b || d.rows != m || d.columns != n || c.rows != m || c.columns != n) return INVALID_VALUE;
    if (a.batch != d.batch || b.batch != d.batch || c.batch != d.batch) return INVALID_VALUE;
    // Overlapping matrices of the output would be written twice.
    if (d.batch > 1 && uint64_t(d.batch_stride) < uint64_t(d.stride) * d.columns) return INVALID_VALUE;
    if (a.type != b.type || c.type != d.type) return NOT_SUPPORTED;
    if (d.type != a.type && d.type != R_32F) return NOT_SUPPORTED;
    if (descriptor.compute != COMPUTE_32F && (descriptor.compute != COMPUTE_32F_FAST_TF32 || a.type != R_32F)) return NOT_SUPPORTED;
    if (descriptor.epilogue & ~(EPILOGUE_RELU_BIAS | EPILOGUE_DEFAULT)) return NOT_SUPPORTED;
    if (descriptor.epilogue & EPILOGUE_BIAS && descriptor.bias_type != -1 && descriptor.bias_type != d.type) return NOT_SUPPORTED;
    return SUCCESS;
}

bool overlap(uint64_t at, uint64_t bytes, uint64_t other, uint64_t other_bytes) { return at < other + other_bytes && other < at + bytes; }

Status run(void* data, void* device) {
    const Product& product = *static_cast<const Product*>(data);
    const auto covers = [&](uint64_t at, uint64_t bytes) { return bytes == 0 || driver().covers(device, at, bytes); };
    const bool has_c = product.beta != 0, has_bias = product.descriptor.epilogue & EPILOGUE_BIAS;
    const bool there = covers(product.at_a, bytes(product.a)) && covers(product.at_b, bytes(product.b)) && covers(product.at_d, bytes(product.d)) &&
                       (!has_c || covers(product.at_c, bytes(product.c))) && covers(product.workspace, product.workspace_bytes) &&
                       (!has_bias || covers(product.descriptor.bias, product.d.rows * element_bytes(product.d.type)));
    // CUDA_ERROR_ILLEGAL_ADDRESS.
    if (!there) return 700;
    const auto meets_output = [&](uint64_t at, uint64_t bytes_there) { return overlap(at, bytes_there, product.at_d, bytes(product.d)); };
    if (meets_output(product.at_a, bytes(product.a)) || meets_output(product.at_b, bytes(product.b)) || meets_output(product.workspace, product.workspace_bytes))
        driver().violation("cublasLtMatmul writes to what it reads or works in");
    if (has_c && product.at_c != product.at_d && meets_output(product.at_c, bytes(product.c)))
        driver().violation("cublasLtMatmul writes to a part of what it adds");
    compute(product);
    return SUCCESS;
}

}  // namespace

CUBLASLT_API cublasLtCreate(Handle** handle) {
    if (const uint64_t status = driver().setting("cublaslt_create")) return Status(status);
    if (driver().may_allocate("cublasLtCreate")) return NOT_INITIALIZED;
    Handle made = {};
    if (driver().take(&made.device, &made.bytes)) return ALLOC_FAILED;
    return make(handle, made);
}

CUBLASLT_API cublasLtDestroy(Handle* handle) {
    if (handle != nullptr) driver().give(handle->device, handle->bytes);
    return destroy(handle);
}

CUBLASLT_API cublasLtGetProperty(int property, int* value) {
    if (property < 0 || property > 2 || value == nullptr) return INVALID_VALUE;
    const uint64_t set = driver().setting("cublaslt_major");
    const int named = driver().named();
    const int version[] = {set != 0 ? int(set) : named, 4, 5};
    *value = version[property];
    return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char* cublasLtGetStatusName(Status status) {
    switch (status) {
        case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

extern "C" __attribute__((visibility("default"))) const char* cublasLtGetStatusString(Status) { return "as the fake was told"; }

CUBLASLT_API cublasLtMatmulDescCreate(Descriptor** descriptor, int32_t compute, int32_t scale) { return make(descriptor, Descriptor{compute, scale}); }

CUBLASLT_API cublasLtMatmulDescDestroy(Descriptor* descriptor) { return destroy(descriptor); }

CUBLASLT_API cublasLtMatmulDescSetAttribute(Descriptor* descriptor, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
        case 3: case 4: case 5: return set(descriptor->transpose[attribute - 3], value, bytes);
        case 7: return set(descriptor->epilogue, value, bytes);
        case 8: return set(descriptor->bias, value, bytes);
        case 26: return set(descriptor->bias_type, value, bytes);
        default: return INVALID_VALUE;
    }
}

CUBLASLT_API cublasLtMatrixLayoutCreate(Layout** layout, int32_t type, uint64_t rows, uint64_t columns, int64_t stride) {
    return make(layout, Layout{type, rows, columns, stride});
}

CUBLASLT_API cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

CUBLASLT_API cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
        case 5: return set(layout->batch, value, bytes);
        case 6: return set(layout->batch_stride, value, bytes);
        default: return INVALID_VALUE;
    }
}

CUBLASLT_API cublasLtMatmulPreferenceCreate(Preference** preference) { return make(preference, Preference{}); }

CUBLASLT_API cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }

CUBLASLT_API cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
        case 1: return set(preference->workspace_bytes, value, bytes);
        case 3: return set(preference->reductions, value, bytes);
        case 5: case 6: case 7: case 8: return set(preference->alignment_bytes[attribute - 5], value, bytes);
        default: return INVALID_VALUE;
    }
}

CUBLASLT_API cublasLtMatmulAlgoGetHeuristic(Handle* handle, const Descriptor* descriptor, const Layout* a, const Layout* b, const Layout* c, const Layout* d,
                                            const Preference* preference, int wanted, Heuristic* found, int* count) {
    if (handle == nullptr || !descriptor || !a || !b || !c || !d || !preference || wanted < 1 || found == nullptr || count == nullptr) return INVALID_VALUE;
    if (driver().context()) return NOT_INITIALIZED;
    *count = 0;
    if (driver().setting("cublaslt_declines")) return NOT_SUPPORTED;
    if (const Status status = check(*descriptor, *a, *b, *c, *d)) return status;
    const Layout* layouts[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (preference->alignment_bytes[i] < element_bytes(layouts[i]->type)) return NOT_SUPPORTED;
    Algorithm algorithm = {MARK, preference->workspace_bytes < WORKSPACE_BYTES ? 0 : WORKSPACE_BYTES, {0, 0, 0, 0, 1}, {}};
    memcpy(algorithm.alignment_bytes, preference->alignment_bytes, sizeof preference->alignment_bytes);
    // Require the alignment of the bias address that the descriptor has now: the real library may
    // do so, too.
    while (algorithm.alignment_bytes[4] < 256 && descriptor->bias % (2 * algorithm.alignment_bytes[4]) == 0) algorithm.alignment_bytes[4] *= 2;
    *found = {algorithm, algorithm.workspace_bytes, SUCCESS, 1.0f, {}};
    *count = 1;
    return SUCCESS;
}

CUBLASLT_API cublasLtMatmul(Handle* handle, const Descriptor* descriptor, const float* alpha, uint64_t at_a, const Layout* a, uint64_t at_b, const Layout* b,
                            const float* beta, uint64_t at_c, const Layout* c, uint64_t at_d, const Layout* d, const Algorithm* algorithm, uint64_t workspace,
                            size_t workspace_bytes, void* stream) {
    if (handle == nullptr || !descriptor || !alpha || !beta || !a || !b || !c || !d || !at_a || !at_b || !at_c || !at_d) return INVALID_VALUE;
    if (const uint64_t status = driver().setting("cublaslt_matmul")) return Status(status);
    if (const Status status = check(*descriptor, *a, *b, *c, *d)) return status;
    // The heuristic must have chosen the algorithm: without one, the real library would run the
    // heuristic now.
    if (algorithm == nullptr || algorithm->mark != MARK) return INVALID_VALUE;
    if (workspace_bytes < algorithm->workspace_bytes || (workspace_bytes > 0 && workspace % 16 != 0)) return INVALID_VALUE;
    const uint64_t addresses[] = {at_a, at_b, at_c, at_d};
    for (int i = 0; i < 4; i++)
        if (addresses[i] % algorithm->alignment_bytes[i] != 0) return INVALID_VALUE;
    if (descriptor->epilogue & EPILOGUE_BIAS && (descriptor->bias == 0 || descriptor->bias % algorithm->alignment_bytes[4] != 0)) return INVALID_VALUE;
    auto* product = new Product{*descriptor, *a, *b, *c, *d, at_a, at_b, at_c, at_d, workspace, algorithm->workspace_bytes, *alpha, *beta};
    const int given = driver().enqueue(stream, "cublasLtMatmul", run, product, [](void* product) { delete static_cast<Product*>(product); });
    return given ? EXECUTION_FAILED : SUCCESS;
}
