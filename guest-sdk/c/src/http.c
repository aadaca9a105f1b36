/* HTTP functions over `wasi:http` 0.2, by the canonical ABI. The imports are a twentieth of the
 * interface. */

#include "../weir_http.h"
#include "call.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define IMPORT(interface, name) __attribute__((import_module(interface), import_name(name)))
#define TYPES "wasi:http/types@0.2.12"
#define STREAMS "wasi:io/streams@0.2.12"

typedef struct {
    uint8_t *ptr;
    size_t len;
} bytes;

/* A variant or option whose payload is bytes, a handle or nothing. */
typedef struct {
    uint8_t tag;
    union {
        bytes bytes;
        int32_t handle;
        struct {
            uint8_t tag;
            int32_t handle;
        } error;
    } val;
} tagged;

/* A result whose error can be `error-code`, the largest type. */
typedef struct {
    uint8_t is_err;
    _Alignas(8) uint8_t payload[64];
} large;

typedef struct {
    uint8_t is_err;
    union {
        uint64_t size;
        uint8_t error;
    } val;
} permit;

IMPORT(TYPES, "[method]incoming-request.method") void wasi_request_method(int32_t request, tagged *method);
IMPORT(TYPES, "[method]incoming-request.path-with-query") void wasi_request_path(int32_t request, tagged *path);
IMPORT(TYPES, "[method]incoming-request.headers") int32_t wasi_request_headers(int32_t request);
IMPORT(TYPES, "[method]incoming-request.consume") void wasi_request_consume(int32_t request, tagged *body);
IMPORT(TYPES, "[resource-drop]incoming-request") void wasi_request_drop(int32_t request);
IMPORT(TYPES, "[method]incoming-body.stream") void wasi_body_stream(int32_t body, tagged *stream);
IMPORT(TYPES, "[resource-drop]incoming-body") void wasi_body_drop(int32_t body);
IMPORT(STREAMS, "[method]input-stream.blocking-read") void wasi_stream_read(int32_t stream, uint64_t size_max, tagged *read);
IMPORT(STREAMS, "[resource-drop]input-stream") void wasi_stream_drop(int32_t stream);
IMPORT(TYPES, "[constructor]fields") int32_t wasi_fields_new(void);
IMPORT(TYPES, "[method]fields.entries") void wasi_fields_entries(int32_t fields, bytes *entries);
IMPORT(TYPES, "[method]fields.append")
void wasi_fields_append(int32_t fields, const char *name, size_t name_size, const char *value, size_t value_size, tagged *done);
IMPORT(TYPES, "[resource-drop]fields") void wasi_fields_drop(int32_t fields);
IMPORT(TYPES, "[constructor]outgoing-response") int32_t wasi_response_new(int32_t fields);
IMPORT(TYPES, "[method]outgoing-response.set-status-code") int32_t wasi_response_set_status(int32_t response, int32_t status);
IMPORT(TYPES, "[resource-drop]outgoing-response") void wasi_response_drop(int32_t response);
IMPORT(TYPES, "[method]outgoing-response.body") void wasi_response_body(int32_t response, tagged *body);
IMPORT(TYPES, "[static]response-outparam.set")
void wasi_response_send(int32_t out, int32_t is_err, int32_t response_or_tag, int32_t a, int64_t b, size_t c, void *d, size_t e, int32_t f);
/* The case of `error-code` that takes any text. */
#define INTERNAL_ERROR 38
IMPORT(TYPES, "[method]outgoing-body.write") void wasi_body_write(int32_t body, tagged *stream);
IMPORT(TYPES, "[static]outgoing-body.finish") void wasi_body_finish(int32_t body, int32_t has_trailers, int32_t trailers, large *done);
IMPORT(STREAMS, "[method]output-stream.check-write") void wasi_stream_check(int32_t stream, permit *permitted);
IMPORT(STREAMS, "[method]output-stream.write") void wasi_stream_write(int32_t stream, const uint8_t *from, size_t size, tagged *done);
IMPORT(STREAMS, "[method]output-stream.blocking-flush") void wasi_stream_flush(int32_t stream, tagged *done);
IMPORT(STREAMS, "[resource-drop]output-stream") void wasi_output_drop(int32_t stream);

/* A header name and value, as listed by `fields.entries`. */
typedef struct {
    bytes name, value;
} entry;

/* Largest read from the body. */
#define READ_SIZE_MAX ((uint64_t)1 << 20)

struct weir_response {
    int status;
    const char *content_type;
    const uint8_t *body;
    size_t size;
    bool is_tensor;
    weir_header *headers;
    size_t header_count;
};

static weir_request received(int32_t handle) {
    static const char *const METHODS[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"};
    weir_request request = {.handle = handle, .path = "/", .query = ""};
    tagged method, path;
    wasi_request_method(handle, &method);
    if (method.tag < sizeof METHODS / sizeof *METHODS) request.method = METHODS[method.tag];
    else request.method = weir_text(method.val.bytes.ptr, method.val.bytes.len);
    wasi_request_path(handle, &path);
    if (path.tag == 1) {
        char *whole = (char *)weir_text(path.val.bytes.ptr, path.val.bytes.len);
        char *mark = strchr(whole, '?');
        if (mark != NULL) {
            *mark = 0;
            request.query = mark + 1;
        }
        if (*whole != 0) request.path = whole;
    }
    int32_t fields = wasi_request_headers(handle);
    bytes list;
    wasi_fields_entries(fields, &list);
    wasi_fields_drop(fields);
    const entry *entries = (const entry *)list.ptr;
    weir_header *headers = weir_alloc(list.len * sizeof *headers);
    for (size_t at = 0; at < list.len; at++) {
        headers[at].name = weir_text(entries[at].name.ptr, entries[at].name.len);
        headers[at].value = weir_text(entries[at].value.ptr, entries[at].value.len);
    }
    request.headers = headers;
    request.header_count = list.len;
    return request;
}

bool weir_is(const weir_request *request, const char *method, const char *path) {
    return strcmp(request->method, method) == 0 && strcmp(request->path, path) == 0;
}

const char *weir_request_header(const weir_request *request, const char *name) {
    for (size_t at = 0; at < request->header_count; at++) {
        if (strcasecmp(request->headers[at].name, name) == 0) return request->headers[at].value;
    }
    return NULL;
}

bool weir_request_bytes(weir_request *request, const uint8_t **out, size_t *size) {
    tagged body, stream, read;
    wasi_request_consume(request->handle, &body);
    if (body.tag != 0) return weir_refuse(WEIR_INVALID_ARGUMENT, "the body was taken before");
    wasi_body_stream(body.val.handle, &stream);
    uint8_t *all = weir_alloc(1);
    size_t have = 0, room = 0;
    bool whole = false;
    while (stream.tag == 0 && !whole) {
        wasi_stream_read(stream.val.handle, READ_SIZE_MAX, &read);
        if (read.tag != 0) {
            /* The body has ended, or was cut off. */
            whole = read.val.error.tag == 1;
            break;
        }
        if (have + read.val.bytes.len > room) {
            room = 2 * (have + read.val.bytes.len);
            uint8_t *grown = weir_alloc(room + 1);
            memcpy(grown, all, have);
            all = grown;
        }
        memcpy(all + have, read.val.bytes.ptr, read.val.bytes.len);
        have += read.val.bytes.len;
        all[have] = 0;
    }
    if (stream.tag == 0) wasi_stream_drop(stream.val.handle);
    wasi_body_drop(body.val.handle);
    if (!whole) return weir_refuse(WEIR_INVALID_ARGUMENT, "the body ended early");
    *out = all;
    *size = have;
    return true;
}

bool weir_request_text(weir_request *request, const char **text) {
    const uint8_t *all;
    size_t size;
    if (!weir_request_bytes(request, &all, &size)) return false;
    if (!weir_is_text(all, size)) return weir_fail(400, "the body is no text");
    *text = (const char *)all;
    return true;
}

bool weir_request_tensor(weir_request *request, weir_type type, const uint32_t *shape, size_t rank, weir_tensor *made) {
    (void)request;
    weir_abi_list_u32_t sizes = {(uint32_t *)shape, rank};
    weir_inference_request_own_tensor_t own;
    weir_inference_request_error_t error;
    if (!weir_inference_request_take_body_as_tensor((uint8_t)type, &sizes, &own, &error)) return weir_failed(&error);
    *made = weir_own_tensor(own.__handle);
    return true;
}

bool weir_reply_text(weir_response *response, int status, const char *text) {
    return weir_reply(response, status, "text/plain; charset=utf-8", text, strlen(text));
}

bool weir_reply(weir_response *response, int status, const char *content_type, const void *from, size_t size) {
    response->status = status;
    response->content_type = content_type;
    response->body = from;
    response->size = size;
    response->is_tensor = false;
    return true;
}

bool weir_reply_tensor(weir_response *response, weir_tensor tensor) {
    weir_inference_request_error_t error;
    if (!weir_is_tensor(tensor)) return false;
    if (!weir_inference_request_reply_with_tensor((weir_inference_request_borrow_tensor_t){tensor.handle}, &error)) return weir_failed(&error);
    response->is_tensor = true;
    return true;
}

void weir_response_header(weir_response *response, const char *name, const char *value) {
    weir_header *grown = weir_alloc((response->header_count + 1) * sizeof *grown);
    if (response->header_count > 0) memcpy(grown, response->headers, response->header_count * sizeof *grown);
    grown[response->header_count++] = (weir_header){name, value};
    response->headers = grown;
}

static void refuse(weir_response *response) {
    const weir_failure *failure = weir_error();
    *response = (weir_response){0};
    weir_reply_text(response, failure->status, weir_format("%s\n", failure->message));
    if (failure->code == WEIR_RESOURCE_EXHAUSTED || failure->code == WEIR_UNAVAILABLE) {
        weir_response_header(response, "retry-after", "1");
    }
}

/* Makes the node send an error response for the function, and logs the reason. */
static void send_failure(int32_t out, const char *why) {
    const int32_t is_some = 1;
    fprintf(stderr, "%s\n", why);
    wasi_response_send(out, 1, INTERNAL_ERROR, is_some, (int64_t)(uintptr_t)why, strlen(why), NULL, 0, 0);
}

static bool append(int32_t fields, const char *name, const char *value, const char **why) {
    tagged done;
    wasi_fields_append(fields, name, strlen(name), value, strlen(value), &done);
    if (done.tag != 0) *why = weir_format("the header %s: %s cannot be sent", name, value);
    return done.tag == 0;
}

/* Appends the headers of the response. */
static bool append_all(int32_t fields, const weir_response *response, const char **why) {
    if (!response->is_tensor) {
        const char *type = response->content_type;
        if (type != NULL && !append(fields, "content-type", type, why)) return false;
        if (!append(fields, "content-length", weir_format("%zu", response->size), why)) return false;
    }
    for (size_t at = 0; at < response->header_count; at++) {
        if (!append(fields, response->headers[at].name, response->headers[at].value, why)) return false;
    }
    return true;
}

static void write_all(int32_t stream, const uint8_t *from, size_t size) {
    tagged done = {0};
    for (size_t at = 0; at < size && done.tag == 0;) {
        permit permitted;
        wasi_stream_check(stream, &permitted);
        if (permitted.is_err) return;
        if (permitted.val.size == 0) {
            wasi_stream_flush(stream, &done);
            continue;
        }
        size_t part = permitted.val.size < size - at ? (size_t)permitted.val.size : size - at;
        wasi_stream_write(stream, from + at, part, &done);
        at += part;
    }
    if (done.tag == 0) wasi_stream_flush(stream, &done);
}

static void send(int32_t out, const weir_response *response) {
    const char *why;
    int32_t fields = wasi_fields_new();
    if (!append_all(fields, response, &why)) {
        wasi_fields_drop(fields);
        send_failure(out, why);
        return;
    }
    int32_t sent = wasi_response_new(fields);
    if (wasi_response_set_status(sent, response->status) != 0) {
        wasi_response_drop(sent);
        send_failure(out, weir_format("the status %d cannot be sent", response->status));
        return;
    }
    tagged body, stream;
    wasi_response_body(sent, &body);
    wasi_response_send(out, 0, sent, 0, 0, 0, NULL, 0, 0);
    if (!response->is_tensor) {
        wasi_body_write(body.val.handle, &stream);
        write_all(stream.val.handle, response->body, response->size);
        wasi_output_drop(stream.val.handle);
    }
    large done;
    wasi_body_finish(body.val.handle, 0, 0, &done);
}

__attribute__((export_name("wasi:http/incoming-handler@0.2.12#handle"))) void weir_http_handle(int32_t handle, int32_t out) {
    weir_request request = received(handle);
    weir_response response = {.status = 200};
    if (!weir_handle(&request, &response)) refuse(&response);
    /* Flushes the log before the response is sent. */
    fflush(NULL);
    send(out, &response);
    wasi_request_drop(handle);
    weir_give_back_all();
    weir_end_call();
}
