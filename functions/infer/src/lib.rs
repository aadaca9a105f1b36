//! Runs the model named in the path on the request body, and responds with the model's first output
//! as bytes.
//!
//! `POST /squeezenet?shape=1,3,224,224` with little-endian `fp32` values. Neither body nor response
//! enters guest memory: this is the minimal function around a model, and the benchmarks measure it.

use weir::{Error, Model, Request, Response, Result};

fn handle(request: Request) -> Result<Response> {
    infer(&request).map_err(|error| {
        let status = match error {
            // The client chose the model and the shape, so it may see these errors.
            Error::InvalidRun(_) => 400,
            Error::NotFound(_) => 404,
            Error::NotGranted(_) => 403,
            _ => error.status(),
        };
        Error::new(status, format!("{error:?}"))
    })
}

fn infer(request: &Request) -> Result<Response> {
    let model = Model::open(request.path().trim_matches('/'))?;
    let shape = request.query_value("shape").unwrap_or_default();
    let shape: Result<Vec<usize>, _> = shape.split(',').map(str::parse).collect();
    let shape = shape.map_err(|_| Error::new(400, "give the shape of the body, like ?shape=1,3,224,224"))?;
    let description = model.describe();
    let (Some(input), Some(output)) = (description.inputs.first(), description.outputs.first()) else {
        return Err(Error::new(422, "the model takes nothing or gives nothing"));
    };
    let body = weir::take_body::<f32>(shape)?;
    let run = model.run([(&*input.name, &body)]).outputs([&*output.name]);
    Ok(Response::tensor(run.infer()?.only()?))
}

weir::http_function!(handle);
