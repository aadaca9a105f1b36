#include "call.h"
#include <string.h>

#define BORROWED(tensor) ((weir_inference_tensors_borrow_tensor_t){(tensor).handle})

/* By weir_type. */
static const struct {
    const char *name;
    size_t size;
} TYPES[] = {
    {"bool", 1},  {"uint8", 1}, {"uint16", 2}, {"uint32", 4}, {"uint64", 8}, {"int8", 1}, {"int16", 2},
    {"int32", 4}, {"int64", 8}, {"fp16", 2},   {"bf16", 2},   {"fp32", 4},   {"fp64", 8}, {"bytes", 1},
};

const char *weir_type_name(weir_type type) {
    return TYPES[type].name;
}

void weir_give_back_tensor(int32_t handle) {
    weir_inference_tensors_tensor_drop_own((weir_inference_tensors_own_tensor_t){handle});
}

weir_tensor weir_own_tensor(int32_t handle) {
    weir_keep(handle, weir_give_back_tensor);
    return (weir_tensor){handle};
}

bool weir_tensor_new(weir_type type, const uint32_t *shape, size_t rank, const void *values, weir_tensor *made) {
    uint64_t size = TYPES[type].size;
    for (size_t at = 0; at < rank; at++) {
        if (__builtin_mul_overflow(size, shape[at], &size) || size > SIZE_MAX) {
            return weir_refuse(WEIR_INVALID_ARGUMENT, "the shape has more elements than there is memory");
        }
    }
    if (type == WEIR_BYTES) return weir_refuse(WEIR_INVALID_ARGUMENT, "weir_tensor_of_bytes makes tensors of byte strings");
    return weir_tensor_of_bytes(type, shape, rank, values, (size_t)size, made);
}

bool weir_tensor_of_bytes(weir_type type, const uint32_t *shape, size_t rank, const void *bytes, size_t size, weir_tensor *made) {
    weir_abi_list_u32_t sizes = {(uint32_t *)shape, rank};
    weir_abi_list_u8_t data = {(uint8_t *)bytes, size};
    weir_inference_tensors_own_tensor_t own;
    weir_inference_tensors_error_t error;
    if (!weir_inference_tensors_static_tensor_from_bytes((uint8_t)type, &sizes, &data, &own, &error)) return weir_failed(&error);
    *made = weir_own_tensor(own.__handle);
    return true;
}

weir_type weir_tensor_type(weir_tensor tensor) {
    return (weir_type)weir_inference_tensors_method_tensor_element_type(BORROWED(tensor));
}

size_t weir_tensor_shape(weir_tensor tensor, const uint32_t **shape) {
    weir_abi_list_u32_t sizes;
    weir_inference_tensors_method_tensor_shape(BORROWED(tensor), &sizes);
    *shape = sizes.ptr;
    return sizes.len;
}

size_t weir_tensor_size(weir_tensor tensor) {
    return (size_t)weir_inference_tensors_method_tensor_byte_length(BORROWED(tensor));
}

bool weir_tensor_bytes(weir_tensor tensor, const uint8_t **bytes) {
    weir_abi_list_u8_t read;
    weir_inference_tensors_error_t error;
    uint64_t size = weir_inference_tensors_method_tensor_byte_length(BORROWED(tensor));
    if (!weir_inference_tensors_method_tensor_read(BORROWED(tensor), 0, size, &read, &error)) return weir_failed(&error);
    *bytes = read.ptr;
    return true;
}

bool weir_tensor_values(weir_tensor tensor, weir_type type, const void **values, size_t *count) {
    weir_type is = weir_tensor_type(tensor);
    if (is != type || type == WEIR_BYTES) {
        return weir_refuse(WEIR_INVALID_ARGUMENT, "the tensor holds %s and not %s", TYPES[is].name,
                           type == WEIR_BYTES ? "numbers" : TYPES[type].name);
    }
    const uint8_t *bytes;
    if (!weir_tensor_bytes(tensor, &bytes)) return false;
    *values = bytes;
    *count = weir_tensor_size(tensor) / TYPES[type].size;
    return true;
}

bool weir_get(const weir_tensors *tensors, const char *name, weir_tensor *found) {
    for (size_t at = 0; at < tensors->count; at++) {
        if (strcmp(tensors->items[at].name, name) == 0) {
            *found = tensors->items[at].tensor;
            return true;
        }
    }
    const char *names = "";
    for (size_t at = 0; at < tensors->count; at++) {
        names = weir_format("%s%s%s", names, at == 0 ? "" : ", ", tensors->items[at].name);
    }
    return weir_refuse(WEIR_INVALID_ARGUMENT, "there is no tensor %s; there are %s", name, tensors->count == 0 ? "none" : names);
}

void weir_put(weir_tensors *tensors, const char *name, weir_tensor tensor) {
    weir_named *grown = weir_alloc((tensors->count + 1) * sizeof(weir_named));
    if (tensors->count > 0) memcpy(grown, tensors->items, tensors->count * sizeof(weir_named));
    grown[tensors->count] = (weir_named){name, tensor};
    tensors->items = grown;
    tensors->count++;
}
