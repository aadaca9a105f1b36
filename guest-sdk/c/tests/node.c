/* The fake holds one object, and one model, `twice`. Output `y` of the model is its input `x`,
 * and output `size` is the size of `x` in bytes. */

#include "../src/call.h"
#include "node.h"
#include <stdlib.h>
#include <string.h>

#define HANDLES_MAX 64

typedef enum { NOTHING, TENSOR, MODEL, PENDING } kind;

static struct {
    kind kind;
    weir_inference_tensors_element_type_t type;
    uint32_t shape[4];
    size_t rank, size;
    uint8_t *bytes;
    /* Outputs of a run, returned once. */
    int32_t outputs[2];
} handles[HANDLES_MAX];

static weir_inference_models_options_t options;

static const size_t SIZES[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 0};

/* Returns the lowest free handle, so that handles are reused as on a node. */
static int32_t lend(kind kind) {
    for (int32_t at = 1; at < HANDLES_MAX; at++) {
        if (handles[at].kind != NOTHING) continue;
        memset(&handles[at], 0, sizeof handles[at]);
        handles[at].kind = kind;
        return at;
    }
    return 0;
}

/* Aborts for a handle of another kind, as a node traps. */
static int32_t held(int32_t handle, kind kind) {
    if (handle <= 0 || handle >= HANDLES_MAX || handles[handle].kind != kind) abort();
    return handle;
}

static void end(int32_t handle, kind kind) {
    free(handles[held(handle, kind)].bytes);
    handles[handle].kind = NOTHING;
}

static weir_abi_string_t text(const char *from) {
    weir_abi_string_t made = {cabi_realloc(NULL, 0, 1, strlen(from)), strlen(from)};
    memcpy(made.ptr, from, made.len);
    return made;
}

static bool refuse(weir_inference_tensors_error_t *error, uint8_t tag, const char *why) {
    error->tag = tag;
    error->val.internal = text(why);
    return false;
}

static int32_t tensor(uint8_t type, const uint32_t *shape, size_t rank, const void *bytes, size_t size) {
    int32_t made = lend(TENSOR);
    if (made == 0) return 0;
    handles[made].type = type;
    handles[made].rank = rank;
    handles[made].size = size;
    handles[made].bytes = malloc(size + 1);
    if (rank > 0) memcpy(handles[made].shape, shape, rank * sizeof *shape);
    if (size > 0) memcpy(handles[made].bytes, bytes, size);
    return made;
}

int node_held(void) {
    int count = 0;
    for (int at = 1; at < HANDLES_MAX; at++) count += handles[at].kind != NOTHING;
    return count;
}

int32_t node_tensor(const float *values, uint32_t count) {
    return tensor(WEIR_INFERENCE_TENSORS_ELEMENT_TYPE_FP32, &count, 1, values, count * sizeof *values);
}

int node_take(int32_t handle) {
    int first = handles[held(handle, TENSOR)].size > 0 ? handles[handle].bytes[0] : -1;
    end(handle, TENSOR);
    return first;
}

const weir_inference_models_options_t *node_options(void) {
    return &options;
}

bool weir_inference_tensors_static_tensor_from_bytes(weir_inference_tensors_element_type_t type, weir_abi_list_u32_t *shape,
                                                     weir_abi_list_u8_t *data, weir_inference_tensors_own_tensor_t *made,
                                                     weir_inference_tensors_error_t *error) {
    size_t size = SIZES[type];
    for (size_t at = 0; at < shape->len; at++) size *= shape->ptr[at];
    if (SIZES[type] > 0 && size != data->len) return refuse(error, WEIR_INFERENCE_TENSORS_ERROR_INVALID_ARGUMENT, "not that long");
    made->__handle = tensor(type, shape->ptr, shape->len, data->ptr, data->len);
    return made->__handle != 0 || refuse(error, WEIR_INFERENCE_TENSORS_ERROR_RESOURCE_EXHAUSTED, "no handle is left");
}

weir_inference_tensors_element_type_t weir_inference_tensors_method_tensor_element_type(weir_inference_tensors_borrow_tensor_t self) {
    return handles[held(self.__handle, TENSOR)].type;
}

void weir_inference_tensors_method_tensor_shape(weir_inference_tensors_borrow_tensor_t self, weir_abi_list_u32_t *shape) {
    int32_t at = held(self.__handle, TENSOR);
    size_t size = handles[at].rank * sizeof *shape->ptr;
    *shape = (weir_abi_list_u32_t){cabi_realloc(NULL, 0, sizeof *shape->ptr, size), handles[at].rank};
    if (size > 0) memcpy(shape->ptr, handles[at].shape, size);
}

uint64_t weir_inference_tensors_method_tensor_byte_length(weir_inference_tensors_borrow_tensor_t self) {
    return handles[held(self.__handle, TENSOR)].size;
}

bool weir_inference_tensors_method_tensor_read(weir_inference_tensors_borrow_tensor_t self, uint64_t offset, uint64_t length,
                                               weir_abi_list_u8_t *read, weir_inference_tensors_error_t *error) {
    int32_t at = held(self.__handle, TENSOR);
    if (offset > handles[at].size || length > handles[at].size - offset) {
        return refuse(error, WEIR_INFERENCE_TENSORS_ERROR_INVALID_ARGUMENT, "past the end");
    }
    *read = (weir_abi_list_u8_t){cabi_realloc(NULL, 0, 1, length), length};
    if (length > 0) memcpy(read->ptr, handles[at].bytes + offset, length);
    return true;
}

void weir_inference_tensors_tensor_drop_own(weir_inference_tensors_own_tensor_t own) {
    end(own.__handle, TENSOR);
}

bool weir_inference_models_static_model_open(weir_abi_string_t *name, weir_inference_models_own_model_t *model,
                                             weir_inference_models_error_t *error) {
    if (name->len != 5 || memcmp(name->ptr, "twice", 5) != 0) {
        return refuse(error, WEIR_INFERENCE_TENSORS_ERROR_NOT_FOUND, "there is no such model");
    }
    model->__handle = lend(MODEL);
    return true;
}

static weir_inference_models_port_t port(const char *name, uint8_t type, size_t rank) {
    weir_abi_option_u32_t *shape = cabi_realloc(NULL, 0, sizeof *shape, rank * sizeof *shape);
    for (size_t at = 0; at < rank; at++) shape[at] = (weir_abi_option_u32_t){at > 0, at > 0 ? 3 : 0};
    return (weir_inference_models_port_t){text(name), type, {shape, rank}};
}

static weir_inference_models_list_port_t ports(weir_inference_models_port_t first, weir_inference_models_port_t *second) {
    size_t count = second == NULL ? 1 : 2;
    weir_inference_models_port_t *all = cabi_realloc(NULL, 0, sizeof(void *), count * sizeof *all);
    all[0] = first;
    if (second != NULL) all[1] = *second;
    return (weir_inference_models_list_port_t){all, count};
}

void weir_inference_models_method_model_describe(weir_inference_models_borrow_model_t self, weir_inference_models_description_t *found) {
    held(self.__handle, MODEL);
    weir_inference_models_port_t size = port("size", WEIR_INFERENCE_TENSORS_ELEMENT_TYPE_INT64, 0);
    found->name = text("twice");
    found->version = text("v1");
    found->inputs = ports(port("x", WEIR_INFERENCE_TENSORS_ELEMENT_TYPE_FP32, 2), NULL);
    found->outputs = ports(port("y", WEIR_INFERENCE_TENSORS_ELEMENT_TYPE_FP32, 2), &size);
}

static bool run(weir_inference_models_list_tuple2_string_borrow_tensor_t *inputs, weir_inference_models_options_t *chosen, int32_t outputs[2],
                weir_inference_models_error_t *error) {
    static const weir_inference_models_options_t NONE;
    options = chosen == NULL ? NONE : *chosen;
    if (inputs->len != 1) return refuse(error, WEIR_INFERENCE_TENSORS_ERROR_INVALID_ARGUMENT, "there is one input");
    int32_t x = held(inputs->ptr[0].f1.__handle, TENSOR);
    int64_t size = (int64_t)handles[x].size;
    outputs[0] = tensor(handles[x].type, handles[x].shape, handles[x].rank, handles[x].bytes, handles[x].size);
    outputs[1] = tensor(WEIR_INFERENCE_TENSORS_ELEMENT_TYPE_INT64, NULL, 0, &size, sizeof size);
    return true;
}

static weir_inference_models_list_tuple2_string_own_tensor_t handed(const int32_t outputs[2]) {
    weir_inference_models_tuple2_string_own_tensor_t *items = cabi_realloc(NULL, 0, sizeof(void *), 2 * sizeof *items);
    items[0].f0 = text("y");
    items[0].f1.__handle = outputs[0];
    items[1].f0 = text("size");
    items[1].f1.__handle = outputs[1];
    return (weir_inference_models_list_tuple2_string_own_tensor_t){items, 2};
}

bool weir_inference_models_method_model_infer(weir_inference_models_borrow_model_t self,
                                              weir_inference_models_list_tuple2_string_borrow_tensor_t *inputs,
                                              weir_inference_models_options_t *chosen,
                                              weir_inference_models_list_tuple2_string_own_tensor_t *outputs,
                                              weir_inference_models_error_t *error) {
    int32_t made[2];
    held(self.__handle, MODEL);
    if (!run(inputs, chosen, made, error)) return false;
    *outputs = handed(made);
    return true;
}

bool weir_inference_models_method_model_submit(weir_inference_models_borrow_model_t self,
                                               weir_inference_models_list_tuple2_string_borrow_tensor_t *inputs,
                                               weir_inference_models_options_t *chosen, weir_inference_models_own_pending_t *started,
                                               weir_inference_models_error_t *error) {
    int32_t made[2];
    held(self.__handle, MODEL);
    if (!run(inputs, chosen, made, error)) return false;
    started->__handle = lend(PENDING);
    memcpy(handles[started->__handle].outputs, made, sizeof made);
    return true;
}

bool weir_inference_models_method_pending_wait(weir_inference_models_borrow_pending_t self,
                                               weir_inference_models_list_tuple2_string_own_tensor_t *outputs,
                                               weir_inference_models_error_t *error) {
    int32_t *made = handles[held(self.__handle, PENDING)].outputs;
    if (made[0] == 0) return refuse(error, WEIR_INFERENCE_TENSORS_ERROR_INVALID_ARGUMENT, "handed over before");
    *outputs = handed(made);
    made[0] = 0;
    return true;
}

void weir_inference_models_method_pending_cancel(weir_inference_models_borrow_pending_t self) {
    held(self.__handle, PENDING);
}

void weir_inference_models_model_drop_own(weir_inference_models_own_model_t own) {
    end(own.__handle, MODEL);
}

void weir_inference_models_pending_drop_own(weir_inference_models_own_pending_t own) {
    const int32_t *made = handles[held(own.__handle, PENDING)].outputs;
    for (int at = 0; at < 2 && made[0] != 0; at++) end(made[at], TENSOR);
    end(own.__handle, PENDING);
}

/* The stored object, a tensor owned by the node. */
static struct {
    bool is_there;
    char name[16];
    uint64_t ttl_ms;
    uint8_t type;
    uint32_t shape[4];
    size_t rank, size;
    uint8_t bytes[64];
} object;

uint64_t node_ttl_ms(void) {
    return object.ttl_ms;
}

static bool is_object(const weir_abi_string_t *name, weir_inference_objects_error_t *error) {
    bool is = object.is_there && name->len == strlen(object.name) && memcmp(name->ptr, object.name, name->len) == 0;
    return is || refuse(error, WEIR_INFERENCE_TENSORS_ERROR_NOT_FOUND, "there is no such object");
}

bool weir_inference_objects_put(weir_abi_string_t *name, weir_inference_objects_borrow_tensor_t value, uint64_t *ttl_ms,
                                weir_inference_objects_error_t *error) {
    int32_t at = held(value.__handle, TENSOR);
    if (name->len >= sizeof object.name || handles[at].size > sizeof object.bytes) {
        return refuse(error, WEIR_INFERENCE_TENSORS_ERROR_RESOURCE_EXHAUSTED, "it is too large");
    }
    memset(&object, 0, sizeof object);
    memcpy(object.name, name->ptr, name->len);
    memcpy(object.shape, handles[at].shape, sizeof object.shape);
    memcpy(object.bytes, handles[at].bytes, handles[at].size);
    object.is_there = true;
    object.type = handles[at].type;
    object.rank = handles[at].rank;
    object.size = handles[at].size;
    object.ttl_ms = ttl_ms == NULL ? 0 : *ttl_ms;
    return true;
}

bool weir_inference_objects_get(weir_abi_string_t *name, weir_inference_objects_own_tensor_t *found, weir_inference_objects_error_t *error) {
    if (!is_object(name, error)) return false;
    found->__handle = tensor(object.type, object.shape, object.rank, object.bytes, object.size);
    return true;
}

bool weir_inference_objects_delete(weir_abi_string_t *name, weir_inference_objects_error_t *error) {
    if (!is_object(name, error)) return false;
    object.is_there = false;
    return true;
}

static weir_inference_image_options_t image_options;

const weir_inference_image_options_t *node_image_options(void) {
    return &image_options;
}

/* Every image is decoded to two black rows of two pixels. */
bool weir_inference_image_decode(weir_inference_image_borrow_tensor_t encoded, weir_inference_image_options_t *given,
                                 weir_inference_image_own_tensor_t *made, weir_inference_image_error_t *error) {
    (void)error;
    held(encoded.__handle, TENSOR);
    image_options = *given;
    const uint32_t shape[] = {1, 3, 2, 2};
    const float black[12] = {0};
    made->__handle = tensor(WEIR_INFERENCE_TENSORS_ELEMENT_TYPE_FP32, shape, 4, black, sizeof black);
    return true;
}

bool weir_inference_image_inspect(weir_inference_image_borrow_tensor_t encoded, weir_inference_image_info_t *found,
                                  weir_inference_image_error_t *error) {
    (void)error;
    held(encoded.__handle, TENSOR);
    *found = (weir_inference_image_info_t){WEIR_INFERENCE_IMAGE_FORMAT_WEBP, 3, 2};
    return true;
}
