//! Runs the models named in the path one after another, each on the first output of the one before.
//!
//! `POST /first/second?shape=8,32,32` with little-endian `fp32` values responds with the last output
//! as bytes. With `&read=no`, it reads no output, and responds with the last output's length in
//! bytes. The outputs between the models stay on their device.
//!
//! With `&pause_ms=380`, it waits before it responds, as for another service.
//!
//! With `&keep=yes`, the instance keeps the last output, if it is reused, and `POST /kept` responds
//! with it.

use std::cell::RefCell;
use std::time::Duration;
use weir::{Error, Model, Request, Response, Result, Tensor};

thread_local! {
    static KEPT: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

fn handle(request: Request) -> Result<Response> {
    if request.path() == "/kept" {
        let kept = KEPT.take().ok_or_else(|| Error::new(404, "this instance keeps no tensor"))?;
        return Ok(Response::tensor(kept));
    }
    let shape = request.query_value("shape").unwrap_or_default();
    let shape: Result<Vec<usize>, _> = shape.split(',').map(str::parse).collect();
    let shape = shape.map_err(|_| Error::new(400, "give the shape of the body, like ?shape=8,32,32"))?;
    let mut tensor = weir::take_body::<f32>(shape)?;
    for name in request.path().split('/').filter(|name| !name.is_empty()) {
        tensor = infer(name, &tensor)?;
    }
    if let Some(pause_ms) = request.query_value("pause_ms") {
        let pause_ms = pause_ms.parse().map_err(|_| Error::new(400, "pause_ms is a number"))?;
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    if request.query_value("keep").as_deref() == Some("yes") {
        let bytes = tensor.byte_length();
        KEPT.set(Some(tensor));
        return Ok(Response::text(bytes.to_string()));
    }
    if request.query_value("read").as_deref() == Some("no") {
        return Ok(Response::text(tensor.byte_length().to_string()));
    }
    Ok(Response::tensor(tensor))
}

fn infer(name: &str, tensor: &Tensor) -> Result<Tensor> {
    let model = Model::open(name)?;
    let description = model.describe();
    let (Some(input), Some(output)) = (description.inputs.first(), description.outputs.first()) else {
        return Err(Error::new(422, "the model takes nothing or gives nothing"));
    };
    model.run([(&*input.name, tensor)]).outputs([&*output.name]).infer()?.only()
}

weir::http_function!(handle);
