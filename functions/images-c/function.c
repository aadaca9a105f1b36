/* Decodes the image in the body, like ../images. */

#include "weir_http.h"
#include <string.h>

bool weir_handle(weir_request *request, weir_response *response) {
    const uint32_t shape[] = {WEIR_ANY};
    weir_tensor image, tensor;
    weir_image_info info;
    weir_image_options options = {0};
    if (!weir_request_tensor(request, WEIR_UINT8, shape, 1, &image)) return false;
    if (strcmp(request->path, "/info") == 0) {
        const char *json = "{\"format\": \"%s\", \"width\": %u, \"height\": %u}";
        if (!weir_image_inspect(image, &info)) return false;
        return weir_reply_text(response, 200, weir_format(json, info.format, (unsigned)info.width, (unsigned)info.height));
    }
    if (strcmp(request->path, "/pixels") == 0) {
        options = (weir_image_options){.type = WEIR_UINT8, .layout = WEIR_NHWC};
    } else if (strcmp(request->path, "/imagenet") == 0) {
        options = (weir_image_options){
            .resize = {256, 256},
            .fit = WEIR_OUTSIDE,
            .crop = {224, 224},
            .mean = {0.485f, 0.456f, 0.406f},
            .std = {0.229f, 0.224f, 0.225f},
        };
    } else {
        return weir_fail(404, "POST an image to /info, /pixels or /imagenet");
    }
    return weir_image_decode(image, &options, &tensor) && weir_reply_tensor(response, tensor);
}
