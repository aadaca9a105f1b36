/* Echoes the request body, like ../echo-body. */

#include "weir_http.h"

bool weir_handle(weir_request *request, weir_response *response) {
    const uint8_t *body;
    size_t size;
    return weir_request_bytes(request, &body, &size) && weir_reply(response, 200, "application/octet-stream", body, size);
}
