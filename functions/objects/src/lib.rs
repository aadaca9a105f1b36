//! Keeps and gives named objects: `PUT /NAME`, for as many milliseconds as `?ttl_ms=` says, `GET /NAME` and `DELETE /NAME`.
//!
//! Neither the body that is kept nor the one that is given enters the guest's memory.

use std::time::Duration;
use weir::{Error, OPEN, Request, Response, Result, objects};

fn handle(request: Request) -> Result<Response> {
    answer(&request).map_err(|error| {
        let status = match error {
            // The caller chose the object, so these are the caller's to know.
            Error::NotFound(_) => 404,
            Error::NotGranted(_) => 403,
            Error::InvalidArgument(_) => 400,
            Error::ResourceExhausted(_) => 507,
            _ => error.status(),
        };
        Error::new(status, format!("{error:?}"))
    })
}

fn answer(request: &Request) -> Result<Response> {
    let name = request.path().trim_matches('/');
    match request.method() {
        "GET" => return Ok(Response::tensor(objects::get(name)?)),
        "DELETE" => objects::delete(name)?,
        "PUT" => {
            let ttl_ms = request.query_value("ttl_ms").map(|ttl_ms| ttl_ms.parse());
            let ttl_ms =
                ttl_ms.transpose().map_err(|_| Error::new(400, "ttl_ms is a number of milliseconds"))?;
            let body = weir::take_body::<u8>([OPEN])?;
            match ttl_ms {
                Some(ttl_ms) => objects::put_for(name, &body, Duration::from_millis(ttl_ms))?,
                None => objects::put(name, &body)?,
            }
        }
        _ => return Err(Error::new(405, "GET, PUT or DELETE")),
    }
    Ok(Response::new(204))
}

weir::http_function!(handle);
