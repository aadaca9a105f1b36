/* Stores and serves named objects, like ../objects. */

#include "weir_http.h"
#include <string.h>

static bool answer(weir_request *request, weir_response *response) {
    const char *name = request->path + (request->path[0] == '/');
    weir_tensor tensor;
    if (strcmp(request->method, "GET") == 0) {
        return weir_object_get(name, &tensor) && weir_reply_tensor(response, tensor);
    }
    if (strcmp(request->method, "PUT") == 0) {
        const uint32_t shape[] = {WEIR_ANY};
        if (!weir_request_tensor(request, WEIR_UINT8, shape, 1, &tensor) || !weir_object_put(name, tensor, 60000)) return false;
    } else if (strcmp(request->method, "DELETE") == 0) {
        if (!weir_object_delete(name)) return false;
    } else {
        return weir_fail(405, "GET, PUT or DELETE");
    }
    return weir_reply_text(response, 204, "");
}

bool weir_handle(weir_request *request, weir_response *response) {
    if (answer(request, response)) return true;
    /* The client chose the object, so it may see these errors. */
    weir_code code = weir_error()->code;
    if (code == WEIR_NOT_FOUND) return weir_reply_text(response, 404, weir_error()->message);
    if (code == WEIR_NOT_GRANTED) return weir_reply_text(response, 403, weir_error()->message);
    return false;
}
