//! Stores and serves named objects: `PUT /NAME`, with the lifetime `?ttl_ms=` in milliseconds, `GET
//! /NAME` and `DELETE /NAME`.
//!
//! Neither the stored nor the served data enters guest memory.

use std::time::Duration;
use weir::{Error, OPEN, Request, Response, Result, objects};

fn handle(request: Request) -> Result<Response> {
    answer(&request).map_err(|error| {
        let status = match error {
            // The client chose the object, so it may see these errors.
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
