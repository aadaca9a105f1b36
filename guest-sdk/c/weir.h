/* Write functions for Weir in C: what HTTP functions and tensor functions share.
 *
 * Whatever can fail gives a bool. After a false, `weir_error()` says why, and a function that gives false on answers with that: an HTTP
 * status and the message, or the error of the tensor function.
 *
 * What the functions below hand out (strings, bytes, tensors, models) lives until the call ends, and is then taken back: nothing has to be
 * freed. A function that makes or opens many drops those that it is done with, for the node's limits hold for all that it has at once.
 *
 * Tensors, models and runs are plain structs, empty where they are zero. A copy is the same thing, and not another: what is dropped through
 * one is gone for all of them. What can fail fails with WEIR_INVALID_ARGUMENT on one that is empty or dropped; the rest must not be given
 * such a one. */
#ifndef WEIR_H
#define WEIR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The types of tensors' elements, those of the Open Inference Protocol. */
typedef enum {
    WEIR_BOOL,
    WEIR_UINT8,
    WEIR_UINT16,
    WEIR_UINT32,
    WEIR_UINT64,
    WEIR_INT8,
    WEIR_INT16,
    WEIR_INT32,
    WEIR_INT64,
    WEIR_FP16,
    WEIR_BF16,
    WEIR_FP32,
    WEIR_FP64,
    /* Byte strings: each is its length as four bytes, little-endian, then itself. */
    WEIR_BYTES,
} weir_type;

/* Why something could not be done. */
typedef enum {
    /* It is wrong in itself: a shape that does not fit the data, an unknown input name. Answers 400. */
    WEIR_INVALID_ARGUMENT,
    /* No model of that name, or no such version of it, is deployed. Answers 500. */
    WEIR_NOT_FOUND,
    /* The model exists, but the function's manifest does not grant it. Answers 500. */
    WEIR_NOT_GRANTED,
    /* A limit of the function or of the node is used up. Answers 503. */
    WEIR_RESOURCE_EXHAUSTED,
    /* The deadline of the run, or of the whole invocation, passed first. Answers 504. */
    WEIR_DEADLINE_EXCEEDED,
    /* The run was cancelled, by the function or because the client went away. Answers 503. */
    WEIR_CANCELLED,
    /* It may work later; safe to try again. Answers 503. */
    WEIR_UNAVAILABLE,
    /* The model itself failed, or the node has a fault. Answers 500. */
    WEIR_INTERNAL,
} weir_code;

typedef struct {
    weir_code code;
    /* The HTTP status that answers for it. */
    int status;
    const char *message;
} weir_failure;

/* Why the last function that gave false did. Its message lives until the call ends. */
const weir_failure *weir_error(void);

/* Fail with an HTTP status from 400 up and a text for whoever asked. Always false, to be returned. */
bool weir_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* `size` bytes of memory until the call ends; all zero, aligned for every type. The SDK frees it. Ends the call where there is none left. */
void *weir_alloc(size_t size);

/* Text until the call ends, as printf makes it. */
const char *weir_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A tensor on the node. Its bytes are in the function's memory only once they are read. */
typedef struct {
    int32_t handle;
} weir_tensor;

/* For one dimension of a shape: what a body's length makes it, or what may differ from run to run. */
#define WEIR_ANY UINT32_MAX

/* Copy `values`, as many as `shape` says, into a new tensor. An empty shape is a scalar. Fails with WEIR_INVALID_ARGUMENT on WEIR_BYTES, and
 * with WEIR_RESOURCE_EXHAUSTED past the limits. The function owns `*made`: weir_tensor_drop. */
bool weir_tensor_new(weir_type type, const uint32_t *shape, size_t rank, const void *values, weir_tensor *made);

/* The same of `size` bytes, as elements of any type lie in memory. WEIR_INVALID_ARGUMENT where the shape needs another number of them. */
bool weir_tensor_of_bytes(weir_type type, const uint32_t *shape, size_t rank, const void *bytes, size_t size, weir_tensor *made);

/* A byte string. */
typedef struct {
    const char *text;
    /* In bytes, without the zero byte that follows those that are read. */
    size_t size;
} weir_string;

/* Copy byte strings, as many as `shape` says, into a new tensor of WEIR_BYTES. Fails as weir_tensor_new does. */
bool weir_tensor_of_strings(const uint32_t *shape, size_t rank, const weir_string *strings, weir_tensor *made);

/* Give a tensor back to the node before the call ends, and make it empty. Does nothing where it is empty or was dropped. */
void weir_tensor_drop(weir_tensor *tensor);

/* The type of its elements. */
weir_type weir_tensor_type(weir_tensor tensor);

/* As the contract spells it: `fp32`. */
const char *weir_type_name(weir_type type);

/* The size of each dimension, outermost first, until the call ends. Gives how many there are. */
size_t weir_tensor_shape(weir_tensor tensor, const uint32_t **shape);

/* How many bytes its elements take. */
uint64_t weir_tensor_size(weir_tensor tensor);

/* Its elements, if they are of `type`, and how many there are. Fails with WEIR_INVALID_ARGUMENT where they are not, and on WEIR_BYTES: use
 * weir_tensor_strings. The SDK owns `*values` until the call ends. */
bool weir_tensor_values(weir_tensor tensor, weir_type type, const void **values, size_t *count);

/* Its byte strings, and how many there are, until the call ends. Fails with WEIR_INVALID_ARGUMENT where it is not of WEIR_BYTES. */
bool weir_tensor_strings(weir_tensor tensor, const weir_string **strings, size_t *count);

/* Copy `size` bytes of its elements, from the byte `offset` on, into memory of the function's own: takes none that stays taken. Fails with
 * WEIR_INVALID_ARGUMENT where they go past weir_tensor_size. */
bool weir_tensor_read(weir_tensor tensor, uint64_t offset, void *into, size_t size);

/* Its elements as bytes, whatever their type, until the call ends. There are weir_tensor_size of them. */
bool weir_tensor_bytes(weir_tensor tensor, const uint8_t **bytes);

typedef struct {
    const char *name;
    weir_tensor tensor;
} weir_named;

/* What goes into a run or comes out of it. */
typedef struct {
    weir_named *items;
    size_t count;
} weir_tensors;

/* The tensor of that name, which stays among them. Fails with WEIR_INVALID_ARGUMENT, and a message that says which there are. */
bool weir_get(const weir_tensors *tensors, const char *name, weir_tensor *found);

/* Add a tensor. `name` must live as long as `tensors`. */
void weir_put(weir_tensors *tensors, const char *name, weir_tensor tensor);

/* Drop every tensor among them, which are none afterwards. */
void weir_tensors_drop(weir_tensors *tensors);

/* A model, or another tensor function, that the function's manifest grants. */
typedef struct {
    int32_t handle;
} weir_model;

/* Find it by `name` or `name:version`. Fails with WEIR_NOT_FOUND, WEIR_NOT_GRANTED, or WEIR_RESOURCE_EXHAUSTED where no device has room for it.
 * The node keeps it in device memory until it is dropped or the call ends. */
bool weir_model_open(const char *name, weir_model *found);

/* Give it back before the call ends, and make it empty. Does nothing where it is empty or was dropped. */
void weir_model_drop(weir_model *model);

/* One input or output of a model. */
typedef struct {
    const char *name;
    weir_type type;
    /* The size of each dimension, outermost first; WEIR_ANY where it may differ from run to run. */
    const uint32_t *shape;
    size_t rank;
} weir_port;

/* What a model is, and what it takes and gives. */
typedef struct {
    const char *name;
    const char *version;
    const weir_port *inputs;
    size_t input_count;
    const weir_port *outputs;
    size_t output_count;
} weir_description;

/* The model's name, version, inputs and outputs, until the call ends. */
bool weir_model_describe(weir_model model, weir_description *found);

/* How to run a model. What is zero is left to the node. */
typedef struct {
    /* The names of the outputs to return, in that order; all of them where `output_count` is zero. Others need not be computed. */
    const char *const *outputs;
    size_t output_count;
    /* Give up after that many milliseconds. The deadline of the whole call holds in any case. */
    uint32_t deadline_ms;
    /* 1 is the most urgent; 0 is as urgent as the call. */
    uint32_t priority;
} weir_options;

/* Run it and wait for the outputs. `outputs` is overwritten: what it held is not dropped. The inputs stay the function's, and the outputs become
 * its own: weir_tensors_drop. Fails with WEIR_INVALID_ARGUMENT on inputs that the model does not take, WEIR_DEADLINE_EXCEEDED,
 * WEIR_RESOURCE_EXHAUSTED, WEIR_UNAVAILABLE, or WEIR_INTERNAL where the model failed. */
bool weir_model_infer(weir_model model, const weir_tensors *inputs, weir_tensors *outputs);

/* The same, with options. */
bool weir_model_infer_with(weir_model model, const weir_tensors *inputs, const weir_options *options, weir_tensors *outputs);

/* A run under way. */
typedef struct {
    int32_t handle;
} weir_pending;

/* Start a run: several of them at once take no longer than the longest. The inputs may be dropped while it goes on. */
bool weir_model_submit(weir_model model, const weir_tensors *inputs, weir_pending *started);

/* The same, with options. */
bool weir_model_submit_with(weir_model model, const weir_tensors *inputs, const weir_options *options, weir_pending *started);

/* Wait for its outputs, which are handed over once: a second time fails with WEIR_INVALID_ARGUMENT. Fails as weir_model_infer does, and with
 * WEIR_CANCELLED once it was stopped. */
bool weir_pending_wait(weir_pending run, weir_tensors *outputs);

/* Stop it if it has not finished. */
void weir_pending_cancel(weir_pending run);

/* Give it back before the call ends, and make it empty; stops it if it has not finished. Does nothing where it is empty or was dropped. */
void weir_pending_drop(weir_pending *run);

/* Tensors that are kept under names, for other functions, inferences and clients to read. The function's manifest says which names it may read,
 * and which it may put and delete:
 *
 *     [function.objects]
 *     read = ["thresholds"]
 *     write = ["session-*"]
 */

/* The tensor that is kept under `name`, as it was put. Fails with WEIR_NOT_FOUND where there is none, or it has expired, and with
 * WEIR_NOT_GRANTED. The function owns `*found`: weir_tensor_drop. */
bool weir_object_get(const char *name, weir_tensor *found);

/* Keep a copy of `value` under `name`, in the place of what was there, for `ttl_ms` milliseconds; 0 is for as long as the node's settings say.
 * It is durable when this returns. Fails with WEIR_RESOURCE_EXHAUSTED where there is no room for it. */
bool weir_object_put(const char *name, weir_tensor value, uint64_t ttl_ms);

/* Let nobody find `name` any more. */
bool weir_object_delete(const char *name);

#endif
