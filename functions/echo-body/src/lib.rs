//! Answers with the request's body, which passes through the function's memory. The others whose names begin so do the same in their
//! languages: `cargo xtask bench` compares them.

use weir::{Request, Response, Result};

fn echo(request: Request) -> Result<Response> {
    Ok(Response::bytes(request.body()?))
}

weir::http_function!(echo);
