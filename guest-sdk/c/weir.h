/* SDK for Weir functions in C: common part of HTTP functions and tensor functions.
 *
 * Functions that can fail return a bool. After false, `weir_error()` returns the reason. A
 * handler that returns false responds with that error: an HTTP status and the message, or the
 * error of the tensor function.
 *
 * All strings, bytes, tensors and models returned below live until the call ends and are then
 * released: nothing has to be freed. A function that creates or opens many should drop those it
 * no longer needs, since the node's limits apply to everything held at once.
 *
 * Tensors, models and runs are plain structs, empty if zero. A copy of a struct refers to the
 * same resource: dropping one copy drops the resource for all. On an empty or dropped resource,
 * functions that can fail do so with WEIR_INVALID_ARGUMENT; the other functions must not be
 * called with it. */
#ifndef WEIR_H
#define WEIR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Element types of tensors, as defined by the Open Inference Protocol. */
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
    /* Byte strings, each prefixed with its length as four little-endian bytes. */
    WEIR_BYTES,
} weir_type;

/* Reason of a failure. */
typedef enum {
    /* An argument is invalid: a shape that does not match the data, an unknown input name.
     * Status 400, or 500 if it is an argument of a model run. */
    WEIR_INVALID_ARGUMENT,
    /* No model of that name, or no such version of it, is deployed. Status 500. */
    WEIR_NOT_FOUND,
    /* The model exists, but the function's manifest does not grant access to it. Status 500. */
    WEIR_NOT_GRANTED,
    /* A limit of the function or of the node is exhausted. Status 503. */
    WEIR_RESOURCE_EXHAUSTED,
    /* The deadline of the run or of the invocation has passed. Status 504. */
    WEIR_DEADLINE_EXCEEDED,
    /* The run was cancelled, by the function or because the client disconnected. Status 503. */
    WEIR_CANCELLED,
    /* A temporary failure; the call is safe to retry. Status 503. */
    WEIR_UNAVAILABLE,
    /* The model failed, or the node has an internal error. Status 500. */
    WEIR_INTERNAL,
} weir_code;

typedef struct {
    weir_code code;
    /* HTTP status of the error response. */
    int status;
    const char *message;
} weir_failure;

/* The reason of the latest failure. Its message lives until the call ends. */
const weir_failure *weir_error(void);

/* Fails with an HTTP status of 400 or higher and a text for the client. Always returns false, so
 * that a handler can return the result. */
bool weir_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Allocates `size` bytes until the call ends, zeroed and aligned for every type. The SDK frees
 * them. If no memory is left, the call ends. */
void *weir_alloc(size_t size);

/* Formats text like printf. The text lives until the call ends. */
const char *weir_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A tensor on the node. Its data enters guest memory only when it is read. */
typedef struct {
    int32_t handle;
} weir_tensor;

/* A variable dimension of a shape: inferred from the length of a body, or different from run to
 * run. */
#define WEIR_ANY UINT32_MAX

/* Creates a tensor from a copy of `values`, as many as `shape` requires. An empty shape is a
 * scalar. Fails with WEIR_INVALID_ARGUMENT for WEIR_BYTES, and with WEIR_RESOURCE_EXHAUSTED
 * above the limits. The function owns `*made`: weir_tensor_drop. */
bool weir_tensor_new(weir_type type, const uint32_t *shape, size_t rank, const void *values, weir_tensor *made);

/* Same, from `size` bytes in the memory layout of the elements. Fails with WEIR_INVALID_ARGUMENT
 * if the shape requires a different size. */
bool weir_tensor_of_bytes(weir_type type, const uint32_t *shape, size_t rank, const void *bytes, size_t size, weir_tensor *made);

/* A byte string. */
typedef struct {
    const char *text;
    /* Length in bytes, without the zero byte that terminates strings read from a tensor. */
    size_t size;
} weir_string;

/* Creates a WEIR_BYTES tensor from copies of byte strings, as many as `shape` requires. Fails
 * like weir_tensor_new. */
bool weir_tensor_of_strings(const uint32_t *shape, size_t rank, const weir_string *strings, weir_tensor *made);

/* Releases a tensor before the end of the call and empties it. Does nothing if the tensor is
 * empty or was dropped. */
void weir_tensor_drop(weir_tensor *tensor);

/* Element type. */
weir_type weir_tensor_type(weir_tensor tensor);

/* Name of the type as in WIT: `fp32`. */
const char *weir_type_name(weir_type type);

/* Size of each dimension, outermost first, valid until the call ends. Returns the number of
 * dimensions. */
size_t weir_tensor_shape(weir_tensor tensor, const uint32_t **shape);

/* Size of the data in bytes. */
uint64_t weir_tensor_size(weir_tensor tensor);

/* Reads the elements and their number. Fails with WEIR_INVALID_ARGUMENT if the elements are not
 * of `type`, and for WEIR_BYTES: use weir_tensor_strings. The SDK owns `*values` until the call
 * ends. */
bool weir_tensor_values(weir_tensor tensor, weir_type type, const void **values, size_t *count);

/* Reads the byte strings and their number, valid until the call ends. Fails with
 * WEIR_INVALID_ARGUMENT if the tensor is not of WEIR_BYTES. */
bool weir_tensor_strings(weir_tensor tensor, const weir_string **strings, size_t *count);

/* Copies `size` bytes of the data, starting at `offset`, into memory of the caller, without
 * allocating memory for the rest of the call. Fails with WEIR_INVALID_ARGUMENT if the range
 * exceeds weir_tensor_size. */
bool weir_tensor_read(weir_tensor tensor, uint64_t offset, void *into, size_t size);

/* Reads the data as bytes for any type, valid until the call ends. Their number is
 * weir_tensor_size. */
bool weir_tensor_bytes(weir_tensor tensor, const uint8_t **bytes);

typedef struct {
    const char *name;
    weir_tensor tensor;
} weir_named;

/* Inputs or outputs of a run. */
typedef struct {
    weir_named *items;
    size_t count;
} weir_tensors;

/* The tensor named `name`, which stays in `tensors`. Fails with WEIR_INVALID_ARGUMENT and a
 * message that lists the existing names. */
bool weir_get(const weir_tensors *tensors, const char *name, weir_tensor *found);

/* Appends a tensor. `name` must live as long as `tensors`. */
void weir_put(weir_tensors *tensors, const char *name, weir_tensor tensor);

/* Drops all tensors and empties `tensors`. */
void weir_tensors_drop(weir_tensors *tensors);

/* A model, or another tensor function, that the function's manifest grants. */
typedef struct {
    int32_t handle;
} weir_model;

/* Opens a model by `name` or `name:version`. Fails with WEIR_NOT_FOUND, WEIR_NOT_GRANTED, or
 * with WEIR_RESOURCE_EXHAUSTED if no device has room for it. The node keeps the model in device
 * memory until it is dropped or the call ends. */
bool weir_model_open(const char *name, weir_model *found);

/* Releases a model before the end of the call and empties it. Does nothing if the model is empty
 * or was dropped. */
void weir_model_drop(weir_model *model);

/* One input or output of a model. */
typedef struct {
    const char *name;
    weir_type type;
    /* Size of each dimension, outermost first; WEIR_ANY for a variable dimension. */
    const uint32_t *shape;
    size_t rank;
} weir_port;

/* Name, version and signature of a model. */
typedef struct {
    const char *name;
    const char *version;
    const weir_port *inputs;
    size_t input_count;
    const weir_port *outputs;
    size_t output_count;
} weir_description;

/* Describes the model: name, version, inputs and outputs, valid until the call ends. */
bool weir_model_describe(weir_model model, weir_description *found);

/* Options of a run. The node chooses the value of a field that is zero. */
typedef struct {
    /* Names of the outputs to return, in that order; all outputs if `output_count` is zero. The
     * node need not compute the others. */
    const char *const *outputs;
    size_t output_count;
    /* Time limit in milliseconds. The deadline of the call still applies. */
    uint32_t deadline_ms;
    /* Priority: 1 is the most urgent; 0 uses the priority of the call. */
    uint32_t priority;
} weir_options;

/* Runs the model and waits for the outputs. Overwrites `outputs` without dropping its previous
 * tensors. The function keeps the inputs, and owns the outputs: weir_tensors_drop. Fails with
 * WEIR_INVALID_ARGUMENT for inputs that the model does not accept, WEIR_DEADLINE_EXCEEDED,
 * WEIR_RESOURCE_EXHAUSTED, WEIR_UNAVAILABLE, or with WEIR_INTERNAL if the model failed. */
bool weir_model_infer(weir_model model, const weir_tensors *inputs, weir_tensors *outputs);

/* Same, with options. */
bool weir_model_infer_with(weir_model model, const weir_tensors *inputs, const weir_options *options, weir_tensors *outputs);

/* An active run. */
typedef struct {
    int32_t handle;
} weir_pending;

/* Starts a run without waiting for it, so that several runs can proceed concurrently. The inputs
 * may be dropped during the run. */
bool weir_model_submit(weir_model model, const weir_tensors *inputs, weir_pending *started);

/* Same, with options. */
bool weir_model_submit_with(weir_model model, const weir_tensors *inputs, const weir_options *options, weir_pending *started);

/* Waits for the outputs and returns them once: a second call fails with WEIR_INVALID_ARGUMENT.
 * Fails like weir_model_infer, and with WEIR_CANCELLED after a cancellation. */
bool weir_pending_wait(weir_pending run, weir_tensors *outputs);

/* Cancels the run if it has not finished. */
void weir_pending_cancel(weir_pending run);

/* Releases a run before the end of the call and empties it. Cancels the run if it has not
 * finished. Does nothing if the run is empty or was dropped. */
void weir_pending_drop(weir_pending *run);

/* Images: JPEG, PNG and WebP, decoded, resized and normalised on the node, straight into tensors. */

/* Treatment of the aspect ratio by a resize. */
typedef enum {
    /* Exactly the size; the aspect ratio changes. */
    WEIR_FILL,
    /* The smallest image that covers the size, then the centre of it. */
    WEIR_COVER,
    /* The largest image within the size, centred, with margins. */
    WEIR_CONTAIN,
    /* The largest image within the size, without margins. */
    WEIR_INSIDE,
    /* The smallest image that covers the size, uncropped. */
    WEIR_OUTSIDE,
} weir_fit;

/* Computation of the pixels of a resized image. All but WEIR_NEAREST average when they shrink an
 * image, and give the pixels of Pillow. */
typedef enum { WEIR_BILINEAR, WEIR_BICUBIC, WEIR_LANCZOS, WEIR_NEAREST } weir_filter;

/* Channels of the tensor. */
typedef enum { WEIR_RGB, WEIR_BGR, WEIR_GREY } weir_channels;

/* Order of the tensor's dimensions: batch, channel, row, column; or batch, row, column, channel. */
typedef enum { WEIR_NCHW, WEIR_NHWC } weir_layout;

/* A size in pixels. */
typedef struct {
    uint32_t width, height;
} weir_size;

/* A colour. */
typedef struct {
    uint8_t red, green, blue;
} weir_colour;

/* Options of a decoding. Zero keeps the size of the image, and makes fp32 numbers from 0 to 1. The
 * node takes the steps in this order: EXIF orientation, background, channels, resize, crop,
 * normalisation. */
typedef struct {
    /* Size of the image; zero keeps its own. */
    weir_size resize;
    weir_fit fit;
    weir_filter filter;
    /* Size of the centre to keep of the resized image; zero keeps all of it. */
    weir_size crop;
    weir_channels channels;
    weir_layout layout;
    /* WEIR_FP32 (also if zero), WEIR_FP16 or WEIR_BF16 for normalised pixels, or WEIR_UINT8 for
     * pixels as they are. A normalised pixel is (pixel * scale - mean) / std. */
    weir_type type;
    /* Factor of each pixel, from 0 to 255; zero is 1/255. */
    float scale;
    /* One number for each channel; only the first is used for WEIR_GREY. If all are zero, mean is 0
     * and std is 1. */
    float mean[3], std[3];
    /* Colour behind transparent pixels and of the margins of WEIR_CONTAIN. If NULL, transparency is
     * ignored and margins are black. */
    const weir_colour *background;
    /* Keeps the pixels as stored, whatever the EXIF orientation. */
    bool ignore_orientation;
} weir_image_options;

/* Decodes an image into a tensor of four dimensions, which a model can take as it is. `encoded` holds
 * the bytes of the image as WEIR_UINT8, such as the body of a request; `options` may be NULL. Fails
 * with WEIR_INVALID_ARGUMENT for an image that is damaged or exceeds the node's limits, and with
 * WEIR_RESOURCE_EXHAUSTED above the function's limit of tensor bytes. The function owns `*made`:
 * weir_tensor_drop. */
bool weir_image_decode(weir_tensor encoded, const weir_image_options *options, weir_tensor *made);

/* Format and size of an encoded image. */
typedef struct {
    /* `jpeg`, `png` or `webp`. */
    const char *format;
    /* Size of the image as it is displayed, with its EXIF orientation applied. */
    uint32_t width, height;
} weir_image_info;

/* Reads the header of an encoded image, without decoding it. Fails with WEIR_INVALID_ARGUMENT for
 * anything but a JPEG, PNG or WebP image. */
bool weir_image_inspect(weir_tensor encoded, weir_image_info *found);

/* Named objects: tensors stored under a name, which other functions, inferences and clients can
 * read. The function's manifest lists the names it may read, and the names it may put and
 * delete:
 *
 *     [function.objects]
 *     read = ["thresholds"]
 *     write = ["session-*"]
 */

/* Reads the tensor stored under `name`. Fails with WEIR_NOT_FOUND if the object does not exist
 * or has expired, and with WEIR_NOT_GRANTED. The function owns `*found`: weir_tensor_drop. */
bool weir_object_get(const char *name, weir_tensor *found);

/* Stores a copy of `value` under `name`, replacing an existing object, for `ttl_ms`
 * milliseconds; 0 selects the node's default. The object is durable when the call returns. Fails
 * with WEIR_RESOURCE_EXHAUSTED if there is no space for the object. */
bool weir_object_put(const char *name, weir_tensor value, uint64_t ttl_ms);

/* Deletes the object `name`. */
bool weir_object_delete(const char *name);

#endif
