//! Echoes the request body, copying it through guest memory. The other `echo-body-*` functions do
//! the same in their languages: `cargo xtask bench` compares them.

use weir::{Request, Response, Result};

fn echo(request: Request) -> Result<Response> {
    Ok(Response::bytes(request.body()?))
}

weir::http_function!(echo);
