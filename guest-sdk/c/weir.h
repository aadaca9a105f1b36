/* Write functions for Weir in C: what HTTP functions and tensor functions share.
 *
 * Whatever can fail gives a bool. After a false, `weir_error()` says why, and a function that gives false on answers with that: an HTTP
 * status and the message, or the error of the tensor function.
 *
 * What the functions below hand out (strings, bytes, tensors, models) lives until the call ends, and is then taken back: there is nothing
 * to free. */
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

/* Why the last function that gave false did. */
const weir_failure *weir_error(void);

/* Fail with an HTTP status from 400 up and a text for whoever asked. Always false, to be returned. */
bool weir_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Memory until the call ends; all zero. Ends the call where there is none left. */
void *weir_alloc(size_t size);

/* Text until the call ends. */
const char *weir_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A tensor on the node. Its bytes are in the function's memory only once they are read. */
typedef struct {
    int32_t handle;
} weir_tensor;

/* Copy `values` into a new tensor. An empty shape is a scalar. */
bool weir_tensor_new(weir_type type, const uint32_t *shape, size_t rank, const void *values, weir_tensor *made);

/* The same of `size` bytes, of any type. */
bool weir_tensor_of_bytes(weir_type type, const uint32_t *shape, size_t rank, const void *bytes, size_t size, weir_tensor *made);

weir_type weir_tensor_type(weir_tensor tensor);

/* As the contract spells it: `fp32`. */
const char *weir_type_name(weir_type type);

/* The size of each dimension, outermost first. Gives how many there are. */
size_t weir_tensor_shape(weir_tensor tensor, const uint32_t **shape);

/* How many bytes its elements take. */
size_t weir_tensor_size(weir_tensor tensor);

/* Its elements, if they are of `type`, and how many there are. Fails on WEIR_BYTES: use weir_tensor_bytes. */
bool weir_tensor_values(weir_tensor tensor, weir_type type, const void **values, size_t *count);

/* Its elements as bytes, whatever their type. There are weir_tensor_size of them. */
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

/* The tensor of that name. */
bool weir_get(const weir_tensors *tensors, const char *name, weir_tensor *found);

/* Add a tensor. */
void weir_put(weir_tensors *tensors, const char *name, weir_tensor tensor);

/* A model, or another tensor function, that the function's manifest grants. */
typedef struct {
    int32_t handle;
} weir_model;

/* Find it by `name` or `name:version`. */
bool weir_model_open(const char *name, weir_model *found);

/* Run it and wait for the outputs. `outputs` is overwritten. */
bool weir_model_infer(weir_model model, const weir_tensors *inputs, weir_tensors *outputs);

/* A run under way. */
typedef struct {
    int32_t handle;
} weir_pending;

/* Start a run: several of them at once take no longer than the longest. */
bool weir_model_submit(weir_model model, const weir_tensors *inputs, weir_pending *started);

/* Wait for its outputs, which are handed over once. */
bool weir_pending_wait(weir_pending run, weir_tensors *outputs);

/* Stop it if it has not finished. */
void weir_pending_cancel(weir_pending run);

#endif
