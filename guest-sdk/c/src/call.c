/* Memory and handles that are released when the call ends. Values returned by the node are
 * allocated with `cabi_realloc`, and so belong to the call too. */

#include "call.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Header of an allocation: a link to the previous one. Aligned for every type. */
typedef union block {
    union block *before;
    max_align_t alignment;
} block;

typedef struct {
    int32_t handle;
    weir_give_back give_back;
} kept;

/* Error of a function that returns false without a reason. */
#define NO_REASON {WEIR_INTERNAL, 500, "the function failed without a reason"}

static weir_failure failure = NO_REASON;
static block *last;
static kept *handles;
static size_t handle_count, handle_room;

static void *take(size_t size) {
    if (size > SIZE_MAX - sizeof(block)) abort();
    block *made = malloc(sizeof(block) + size);
    if (made == NULL) {
        fputs("out of memory\n", stderr);
        abort();
    }
    made->before = last;
    last = made;
    return made + 1;
}

/* The node calls with an old block only for string encodings that the SDK does not use. */
__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, size_t old_size, size_t align, size_t new_size) {
    if (new_size == 0) return (void *)align;
    void *made = take(new_size);
    if (old_size > 0) memcpy(made, old, old_size < new_size ? old_size : new_size);
    return made;
}

void *weir_alloc(size_t size) {
    return memset(take(size), 0, size);
}

void weir_keep(int32_t handle, weir_give_back give_back) {
    if (handle_count == handle_room) {
        handle_room = handle_room == 0 ? 16 : 2 * handle_room;
        handles = realloc(handles, handle_room * sizeof(kept));
        if (handles == NULL) abort();
    }
    handles[handle_count++] = (kept){handle, give_back};
}

/* Entry of a handle; NULL if it is not registered. Searches from the end, since handles released
 * early were mostly registered late. */
static kept *find(int32_t handle, weir_give_back give_back) {
    for (size_t at = handle_count; at-- > 0;) {
        if (handles[at].handle == handle && handles[at].give_back == give_back) return &handles[at];
    }
    return NULL;
}

bool weir_is_kept(int32_t handle, weir_give_back give_back) {
    return find(handle, give_back) != NULL;
}

bool weir_let_go(int32_t handle, weir_give_back give_back) {
    kept *found = find(handle, give_back);
    if (found == NULL) return false;
    *found = handles[--handle_count];
    return true;
}

void weir_drop(int32_t *handle, weir_give_back give_back) {
    if (weir_let_go(*handle, give_back)) give_back(*handle);
    *handle = 0;
}

void weir_give_back_all(void) {
    while (handle_count > 0) {
        handle_count--;
        handles[handle_count].give_back(handles[handle_count].handle);
    }
}

static void free_one(void) {
    block *before = last->before;
    free(last);
    last = before;
}

bool weir_free_last(const void *memory) {
    bool is_last = last != NULL && last + 1 == memory;
    if (is_last) free_one();
    return is_last;
}

void weir_end_call(void) {
    while (last != NULL) free_one();
    /* The message of the failure was in the freed memory. */
    failure = (weir_failure)NO_REASON;
}

const char *weir_text(const uint8_t *bytes, size_t size) {
    char *text = weir_alloc(size + 1);
    if (size > 0) memcpy(text, bytes, size);
    return text;
}

weir_abi_string_t weir_abi_text(const char *text) {
    return (weir_abi_string_t){(uint8_t *)text, strlen(text)};
}

bool weir_is_text(const uint8_t *bytes, size_t size) {
    for (size_t at = 0; at < size;) {
        uint8_t first = bytes[at];
        size_t length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3
                                                                       : first >= 0xf0 && first < 0xf5   ? 4
                                                                                                         : 0;
        if (first == 0 || length == 0 || length > size - at) return false;
        for (size_t next = 1; next < length; next++) {
            /* The range of the second byte excludes surrogates, overlong encodings and code
             * points above U+10FFFF. */
            uint8_t least = next > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
            uint8_t most = next > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
            if (bytes[at + next] < least || bytes[at + next] > most) return false;
        }
        at += length;
    }
    return true;
}

static const char *formatted(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) return "";
    char *text = weir_alloc((size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    return text;
}

const char *weir_format(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *text = formatted(format, arguments);
    va_end(arguments);
    return text;
}

/* Line buffering, so that the log has all lines printed before a trap. */
__attribute__((constructor)) static void print_by_line(void) {
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

static int status_of(weir_code code) {
    switch (code) {
        case WEIR_INVALID_ARGUMENT:
            return 400;
        case WEIR_RESOURCE_EXHAUSTED:
        case WEIR_CANCELLED:
        case WEIR_UNAVAILABLE:
            return 503;
        case WEIR_DEADLINE_EXCEEDED:
            return 504;
        default:
            return 500;
    }
}

const weir_failure *weir_error(void) {
    return &failure;
}

bool weir_fail(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *message = formatted(format, arguments);
    va_end(arguments);
    failure = (weir_failure){status >= 400 && status < 500 ? WEIR_INVALID_ARGUMENT : WEIR_INTERNAL, status, message};
    return false;
}

bool weir_refuse(weir_code code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *message = formatted(format, arguments);
    va_end(arguments);
    failure = (weir_failure){code, status_of(code), message};
    return false;
}

bool weir_failed(const weir_inference_tensors_error_t *error) {
    weir_code code = (weir_code)error->tag;
    if (code == WEIR_DEADLINE_EXCEEDED) return weir_refuse(code, "the deadline passed");
    if (code == WEIR_CANCELLED) return weir_refuse(code, "the run was cancelled");
    /* The text is at the same offset in every case that has one. */
    const weir_abi_string_t *text = &error->val.internal;
    return weir_refuse(code, "%s", weir_text(text->ptr, text->len));
}

bool weir_blame_function(void) {
    if (failure.code == WEIR_INVALID_ARGUMENT) failure.status = 500;
    return false;
}

bool weir_run_failed(const weir_inference_tensors_error_t *error) {
    weir_failed(error);
    return weir_blame_function();
}

/* The generated code references the object file with the world's type. `weir build` embeds the
 * type instead. */
void __component_type_object_force_link_weir_abi(void) {}
