//! Decodes the image in the body: `POST /info` answers with its format and size, `POST /pixels` with
//! its pixels, row by row, and `POST /imagenet` with the input of a classifier that was trained on
//! ImageNet.
//!
//! Neither the image nor the pixels enter guest memory.

use serde_json::json;
use weir::images::{Decode, Fit, Format, Layout, inspect};
use weir::{ElementType, Error, OPEN, Request, Response, Result};

fn handle(request: Request) -> Result<Response> {
    let image = weir::take_body::<u8>([OPEN])?;
    match request.path() {
        "/info" => {
            let info = inspect(&image)?;
            let format = match info.format {
                Format::Jpeg => "jpeg",
                Format::Png => "png",
                Format::Webp => "webp",
            };
            Response::json(&json!({ "format": format, "width": info.width, "height": info.height }))
        }
        "/pixels" => {
            let decode = Decode::new().element_type(ElementType::Uint8).layout(Layout::Nhwc);
            Ok(Response::tensor(decode.decode(&image)?))
        }
        "/imagenet" => {
            let decode = Decode::new()
                .resize(256, 256, Fit::Outside)
                .crop(224, 224)
                .mean([0.485, 0.456, 0.406])
                .std([0.229, 0.224, 0.225]);
            Ok(Response::tensor(decode.decode(&image)?))
        }
        _ => Err(Error::new(404, "POST an image to /info, /pixels or /imagenet")),
    }
}

weir::http_function!(handle);
