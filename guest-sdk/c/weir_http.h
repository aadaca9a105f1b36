/* HTTP in and out. */
#ifndef WEIR_HTTP_H
#define WEIR_HTTP_H

#include "weir.h"

typedef struct {
    const char *name;
    const char *value;
} weir_header;

/* A request to answer. */
typedef struct {
    /* In capitals: `GET`, `POST`, ... */
    const char *method;
    /* The path within the function, percent-encoded, with the slash at its start and without the query. */
    const char *path;
    /* What follows the question mark, as it was sent; empty where there is none. */
    const char *query;
    const weir_header *headers;
    size_t header_count;
    /* The SDK's own. */
    int32_t handle;
} weir_request;

/* Whether it is of that method and path. */
bool weir_is(const weir_request *request, const char *method, const char *path);

/* The first header of that name, whatever its case; NULL where there is none. */
const char *weir_request_header(const weir_request *request, const char *name);

/* The whole body, which can be taken once, in one of three ways: WEIR_INVALID_ARGUMENT where it was taken before, or the client ended it early.
 * The SDK owns `*bytes` until the call ends; a zero byte follows them. */
bool weir_request_bytes(weir_request *request, const uint8_t **bytes, size_t *size);

/* As text, which the SDK owns until the call ends. Answers 400 where it is not UTF-8, or has a zero byte in it. */
bool weir_request_text(weir_request *request, const char **text);

/* As a tensor, without its bytes entering the function's memory. One dimension may be WEIR_ANY: what the body's length makes it. Fails with
 * WEIR_INVALID_ARGUMENT where the body was taken before or is of another length, and WEIR_RESOURCE_EXHAUSTED past the limits. The function
 * owns `*made`: weir_tensor_drop. */
bool weir_request_tensor(weir_request *request, weir_type type, const uint32_t *shape, size_t rank, weir_tensor *made);

/* An answer under construction: 200 and empty at first. */
typedef struct weir_response weir_response;

/* Answer with text, which must live until the handler has returned. Always true, to be returned. */
bool weir_reply_text(weir_response *response, int status, const char *text);

/* Answer with `size` bytes, which must live until the handler has returned, as must `content_type`; NULL sends none. Always true. */
bool weir_reply(weir_response *response, int status, const char *content_type, const void *bytes, size_t size);

/* Answer with a tensor's bytes, which do not enter the function's memory. It stays the function's, and may be dropped at once. Fails with
 * WEIR_INVALID_ARGUMENT on one that is empty or dropped. */
bool weir_reply_tensor(weir_response *response, weir_tensor tensor);

/* Add a header. Both texts must live until the handler has returned. What cannot be sent is answered with 502, and the log says why. */
void weir_response_header(weir_response *response, const char *name, const char *value);

/* Answers a request. The function's author writes it. Where it gives false, weir_error() is the answer. */
bool weir_handle(weir_request *request, weir_response *response);

#endif
