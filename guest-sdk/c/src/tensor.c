#include "call.h"
#include <string.h>

#define BORROWED(tensor) ((weir_inference_tensors_borrow_tensor_t){(tensor).handle})

/* Indexed by weir_type. */
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

bool weir_is_tensor(weir_tensor tensor) {
    return weir_is_kept(tensor.handle, weir_give_back_tensor) ||
           weir_refuse(WEIR_INVALID_ARGUMENT, "there is no tensor where one is needed: it is empty, or was dropped");
}

void weir_tensor_drop(weir_tensor *tensor) {
    weir_drop(&tensor->handle, weir_give_back_tensor);
}

void weir_tensors_drop(weir_tensors *tensors) {
    for (size_t at = 0; at < tensors->count; at++) weir_tensor_drop(&tensors->items[at].tensor);
    *tensors = (weir_tensors){NULL, 0};
}

/* Size of elements of `each` bytes. */
static bool sized(const uint32_t *shape, size_t rank, size_t each, size_t *size) {
    uint64_t all = each;
    for (size_t at = 0; at < rank; at++) {
        if (__builtin_mul_overflow(all, shape[at], &all) || all > SIZE_MAX) {
            return weir_refuse(WEIR_INVALID_ARGUMENT, "the shape has more elements than there is memory");
        }
    }
    *size = (size_t)all;
    return true;
}

bool weir_tensor_new(weir_type type, const uint32_t *shape, size_t rank, const void *values, weir_tensor *made) {
    size_t size;
    if (type == WEIR_BYTES) return weir_refuse(WEIR_INVALID_ARGUMENT, "weir_tensor_of_strings makes tensors of byte strings");
    return sized(shape, rank, TYPES[type].size, &size) && weir_tensor_of_bytes(type, shape, rank, values, size, made);
}

/* Size of the length prefix of a byte string. */
#define PREFIX 4

bool weir_tensor_of_strings(const uint32_t *shape, size_t rank, const weir_string *strings, weir_tensor *made) {
    size_t count, size;
    if (!sized(shape, rank, sizeof *strings, &count)) return false;
    count /= sizeof *strings;
    size = count * PREFIX;
    for (size_t at = 0; at < count; at++) {
        if (strings[at].size > UINT32_MAX || __builtin_add_overflow(size, strings[at].size, &size)) {
            return weir_refuse(WEIR_INVALID_ARGUMENT, "the byte strings are longer than there is memory");
        }
    }
    uint8_t *bytes = weir_alloc(size), *next = bytes;
    for (size_t at = 0; at < count; at++) {
        for (unsigned place = 0; place < PREFIX; place++) *next++ = (uint8_t)(strings[at].size >> 8 * place);
        if (strings[at].size > 0) memcpy(next, strings[at].text, strings[at].size);
        next += strings[at].size;
    }
    bool is_made = weir_tensor_of_bytes(WEIR_BYTES, shape, rank, bytes, size, made);
    weir_free_last(bytes);
    return is_made;
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

uint64_t weir_tensor_size(weir_tensor tensor) {
    return weir_inference_tensors_method_tensor_byte_length(BORROWED(tensor));
}

static bool read_part(weir_tensor tensor, uint64_t offset, uint64_t size, const uint8_t **bytes) {
    weir_abi_list_u8_t read;
    weir_inference_tensors_error_t error;
    if (!weir_inference_tensors_method_tensor_read(BORROWED(tensor), offset, size, &read, &error)) return weir_failed(&error);
    *bytes = read.ptr;
    return true;
}

bool weir_tensor_bytes(weir_tensor tensor, const uint8_t **bytes) {
    return weir_is_tensor(tensor) && read_part(tensor, 0, weir_tensor_size(tensor), bytes);
}

bool weir_tensor_read(weir_tensor tensor, uint64_t offset, void *into, size_t size) {
    const uint8_t *bytes;
    if (!weir_is_tensor(tensor) || !read_part(tensor, offset, size, &bytes)) return false;
    if (size > 0) memcpy(into, bytes, size);
    weir_free_last(bytes);
    return true;
}

bool weir_tensor_strings(weir_tensor tensor, const weir_string **strings, size_t *count) {
    if (!weir_is_tensor(tensor)) return false;
    weir_type is = weir_tensor_type(tensor);
    if (is != WEIR_BYTES) return weir_refuse(WEIR_INVALID_ARGUMENT, "the tensor holds %s and not bytes", TYPES[is].name);
    uint64_t size = weir_tensor_size(tensor);
    if (size >= SIZE_MAX) return weir_refuse(WEIR_INVALID_ARGUMENT, "the byte strings are longer than there is memory");
    /* The terminating zero of each string overwrites the prefix of the next one, and the last
     * string's needs one more byte. */
    uint8_t *bytes = weir_alloc((size_t)size + 1);
    if (!weir_tensor_read(tensor, 0, bytes, (size_t)size)) return false;
    size_t left = (size_t)size, found = 0;
    weir_string *all = weir_alloc(left / PREFIX * sizeof *all);
    for (uint8_t *next = bytes; left > 0; found++) {
        size_t length = 0;
        for (unsigned place = 0; left >= PREFIX && place < PREFIX; place++) length |= (size_t)next[place] << 8 * place;
        if (left < PREFIX || length > left - PREFIX) return weir_refuse(WEIR_INVALID_ARGUMENT, "the tensor ends inside a byte string");
        *next = 0;
        all[found] = (weir_string){(const char *)next + PREFIX, length};
        next += PREFIX + length;
        left -= PREFIX + length;
    }
    *strings = all;
    *count = found;
    return true;
}

bool weir_tensor_values(weir_tensor tensor, weir_type type, const void **values, size_t *count) {
    if (!weir_is_tensor(tensor)) return false;
    weir_type is = weir_tensor_type(tensor);
    if (is != type || type == WEIR_BYTES) {
        return weir_refuse(WEIR_INVALID_ARGUMENT, "the tensor holds %s and not %s", TYPES[is].name,
                           type == WEIR_BYTES ? "numbers" : TYPES[type].name);
    }
    const uint8_t *bytes;
    if (!weir_tensor_bytes(tensor, &bytes)) return false;
    *values = bytes;
    *count = (size_t)(weir_tensor_size(tensor) / TYPES[type].size);
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
