/* HTTP requests and responses. */
#ifndef WEIR_HTTP_H
#define WEIR_HTTP_H

#include "weir.h"

typedef struct {
    const char *name;
    const char *value;
} weir_header;

/* The request to answer. */
typedef struct {
    /* Method in capitals: `GET`, `POST`, ... */
    const char *method;
    /* Path within the function, percent-encoded, with the leading slash and without the query. */
    const char *path;
    /* Query after the question mark, as sent; empty if there is none. */
    const char *query;
    const weir_header *headers;
    size_t header_count;
    /* Internal to the SDK. */
    int32_t handle;
} weir_request;

/* Whether the request has that method and path. */
bool weir_is(const weir_request *request, const char *method, const char *path);

/* The first header of that name, in any case; NULL if there is none. */
const char *weir_request_header(const weir_request *request, const char *name);

/* Reads the whole body. The body can be taken once, in one of three ways: fails with
 * WEIR_INVALID_ARGUMENT if it was taken before, or if the client ended it early. The SDK owns
 * `*bytes` until the call ends; a zero byte follows them. */
bool weir_request_bytes(weir_request *request, const uint8_t **bytes, size_t *size);

/* Reads the body as text, which the SDK owns until the call ends. The error is a 400 response if
 * the body is not UTF-8 or contains a zero byte. */
bool weir_request_text(weir_request *request, const char **text);

/* Takes the body as a tensor. The bytes stay on the node and do not enter guest memory. One
 * dimension may be WEIR_ANY: it is inferred from the length of the body. Fails with
 * WEIR_INVALID_ARGUMENT if the body was taken before or its length does not match, and with
 * WEIR_RESOURCE_EXHAUSTED above the limits. The function owns `*made`: weir_tensor_drop. */
bool weir_request_tensor(weir_request *request, weir_type type, const uint32_t *shape, size_t rank, weir_tensor *made);

/* A response under construction, initially with status 200 and an empty body. */
typedef struct weir_response weir_response;

/* Responds with text, which must live until the handler has returned. Always returns true, so
 * that a handler can return the result. */
bool weir_reply_text(weir_response *response, int status, const char *text);

/* Responds with `size` bytes. They and `content_type` must live until the handler has returned;
 * a NULL `content_type` sends none. Always returns true. */
bool weir_reply(weir_response *response, int status, const char *content_type, const void *bytes, size_t size);

/* Responds with the bytes of a tensor, which stay on the node and do not enter guest memory. The
 * function keeps the tensor, and may drop it at once. Fails with WEIR_INVALID_ARGUMENT if the
 * tensor is empty or was dropped. */
bool weir_reply_tensor(weir_response *response, weir_tensor tensor);

/* Adds a header. Both texts must live until the handler has returned. An invalid header turns
 * the response into a 502, and the log has the reason. */
void weir_response_header(weir_response *response, const char *name, const char *value);

/* Handles a request. Implemented by the author of the function. If it returns false, the
 * response is weir_error(). */
bool weir_handle(weir_request *request, weir_response *response);

#endif
