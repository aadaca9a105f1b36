/* What belongs to the call under way, inside the SDK. */
#ifndef WEIR_CALL_H
#define WEIR_CALL_H

#include "../abi/weir_abi.h"
#include "../weir.h"

/* What the node lends: resources, by the function that gives one back. */
typedef void (*weir_give_back)(int32_t handle);

/* Give `handle` back when the call ends. */
void weir_keep(int32_t handle, weir_give_back give_back);

/* Whether `handle` is the function's: neither empty, nor given back, nor somebody else's. */
bool weir_is_kept(int32_t handle, weir_give_back give_back);

/* The handle is somebody else's now. Whether it was the function's before. */
bool weir_let_go(int32_t handle, weir_give_back give_back);

/* Give `*handle` back now, where it is the function's, and make it empty. */
void weir_drop(int32_t *handle, weir_give_back give_back);

/* Give all handles back. The node allows that only while the call runs, and not once its answer is being read. */
void weir_give_back_all(void);

/* Free all memory that the call has taken. */
void weir_end_call(void);

/* Free `memory` if it is the last that was taken, by the function or by the node. Whether it was. */
bool weir_free_last(const void *memory);

/* What the node takes memory with, to hand something over. */
void *cabi_realloc(void *old, size_t old_size, size_t align, size_t new_size);

/* `size` bytes of text with a zero byte behind. */
const char *weir_text(const uint8_t *bytes, size_t size);

/* Whether the bytes are UTF-8 without zero bytes. */
bool weir_is_text(const uint8_t *bytes, size_t size);

/* Keep a failure that the node gave. Always false. */
bool weir_failed(const weir_inference_tensors_error_t *error);

/* Keep a failure of the SDK's own. Always false. */
bool weir_refuse(weir_code code, const char *format, ...) __attribute__((format(printf, 2, 3)));

weir_tensor weir_own_tensor(int32_t handle);
void weir_give_back_tensor(int32_t handle);

/* Whether it can be used; fails where it cannot. */
bool weir_is_tensor(weir_tensor tensor);

/* Text for the node, which copies it. */
weir_abi_string_t weir_abi_text(const char *text);

#endif
