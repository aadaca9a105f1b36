#include "call.h"

/* Cases of the node, whose zero is the nearest pixel. Indexed by weir_filter. */
static const weir_inference_image_filter_t FILTERS[] = {
    WEIR_INFERENCE_IMAGE_FILTER_BILINEAR,
    WEIR_INFERENCE_IMAGE_FILTER_BICUBIC,
    WEIR_INFERENCE_IMAGE_FILTER_LANCZOS,
    WEIR_INFERENCE_IMAGE_FILTER_NEAREST,
};

/* Cases of the node's formats. */
static const char *const FORMATS[] = {"jpeg", "png", "webp"};

static bool is_set(weir_size size) {
    return size.width != 0 || size.height != 0;
}

/* Numbers for the channels; none if all are zero. */
static weir_abi_list_f32_t numbers(const float values[3], weir_channels channels) {
    bool is_zero = values[0] == 0 && values[1] == 0 && values[2] == 0;
    return (weir_abi_list_f32_t){(float *)values, is_zero ? 0 : channels == WEIR_GREY ? 1 : 3};
}

bool weir_image_decode(weir_tensor encoded, const weir_image_options *options, weir_tensor *made) {
    if (!weir_is_tensor(encoded)) return false;
    const weir_image_options none = {0}, *given = options == NULL ? &none : options;
    if ((unsigned)given->fit > WEIR_OUTSIDE || (unsigned)given->filter > WEIR_NEAREST || (unsigned)given->channels > WEIR_GREY ||
        (unsigned)given->layout > WEIR_NHWC || (unsigned)given->type > WEIR_BYTES) {
        return weir_refuse(WEIR_INVALID_ARGUMENT, "the options of the image have an unknown fit, filter, channels, layout or type");
    }
    weir_inference_image_options_t asked = {
        .channels = (weir_inference_image_channels_t)given->channels,
        .layout = (weir_inference_image_layout_t)given->layout,
        .element_type = (weir_inference_image_element_type_t)(given->type == 0 ? WEIR_FP32 : given->type),
        .mean = numbers(given->mean, given->channels),
        .std = numbers(given->std, given->channels),
        .ignore_orientation = given->ignore_orientation,
    };
    asked.resize.is_some = is_set(given->resize);
    asked.resize.val.to = (weir_inference_image_size_t){given->resize.width, given->resize.height};
    asked.resize.val.fit = (weir_inference_image_fit_t)given->fit;
    asked.resize.val.filter = FILTERS[given->filter];
    asked.crop.is_some = is_set(given->crop);
    asked.crop.val = (weir_inference_image_size_t){given->crop.width, given->crop.height};
    asked.scale.is_some = given->scale != 0;
    asked.scale.val = given->scale;
    asked.background.is_some = given->background != NULL;
    if (given->background != NULL) {
        asked.background.val = (weir_inference_image_colour_t){given->background->red, given->background->green, given->background->blue};
    }
    weir_inference_image_own_tensor_t own;
    weir_inference_image_error_t error;
    weir_inference_image_borrow_tensor_t borrowed = {encoded.handle};
    if (!weir_inference_image_decode(borrowed, &asked, &own, &error)) return weir_failed(&error);
    *made = weir_own_tensor(own.__handle);
    return true;
}

bool weir_image_inspect(weir_tensor encoded, weir_image_info *found) {
    if (!weir_is_tensor(encoded)) return false;
    weir_inference_image_info_t info;
    weir_inference_image_error_t error;
    weir_inference_image_borrow_tensor_t borrowed = {encoded.handle};
    if (!weir_inference_image_inspect(borrowed, &info, &error)) return weir_failed(&error);
    *found = (weir_image_info){FORMATS[info.format], info.width, info.height};
    return true;
}
