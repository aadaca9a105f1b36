/* State of the current call, internal to the SDK. */
#ifndef WEIR_CALL_H
#define WEIR_CALL_H

#include "../abi/weir_abi.h"
#include "../weir.h"

/* Releases a resource of the node. */
typedef void (*weir_give_back)(int32_t handle);

/* Registers `handle` for release at the end of the call. */
void weir_keep(int32_t handle, weir_give_back give_back);

/* Whether the function owns `handle`: it is registered, and neither released nor transferred. */
bool weir_is_kept(int32_t handle, weir_give_back give_back);

/* Unregisters `handle` to transfer its ownership. Returns whether the function owned it. */
bool weir_let_go(int32_t handle, weir_give_back give_back);

/* Releases `*handle` now, if the function owns it, and empties it. */
void weir_drop(int32_t *handle, weir_give_back give_back);

/* Releases all handles. The node allows the release only during the call, and not while it reads
 * the answer. */
void weir_give_back_all(void);

/* Frees all memory of the call. */
void weir_end_call(void);

/* Frees `memory` if it is the latest allocation, by the function or by the node. Returns whether
 * it was. */
bool weir_free_last(const void *memory);

/* Allocation function of the canonical ABI, which the node calls to return values. */
void *cabi_realloc(void *old, size_t old_size, size_t align, size_t new_size);

/* A copy of `size` bytes of text with a terminating zero byte. */
const char *weir_text(const uint8_t *bytes, size_t size);

/* Whether the bytes are UTF-8 without zero bytes. */
bool weir_is_text(const uint8_t *bytes, size_t size);

/* Records a failure returned by the node. Always returns false. */
bool weir_failed(const weir_inference_tensors_error_t *error);

/* Makes invalid arguments in the latest failure, of a model run, a failure of the function, which
 * chose them. Always returns false. */
bool weir_blame_function(void);

/* Records a failure of a model run returned by the node. Always returns false. */
bool weir_run_failed(const weir_inference_tensors_error_t *error);

/* Records a failure detected by the SDK. Always returns false. */
bool weir_refuse(weir_code code, const char *format, ...) __attribute__((format(printf, 2, 3)));

weir_tensor weir_own_tensor(int32_t handle);
void weir_give_back_tensor(int32_t handle);

/* Whether the tensor can be used; records a failure if not. */
bool weir_is_tensor(weir_tensor tensor);

/* Text to pass to the node, which copies it. */
weir_abi_string_t weir_abi_text(const char *text);

#endif
