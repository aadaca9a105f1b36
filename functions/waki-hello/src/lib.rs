//! Built with waki alone, which does not know Weir.

use waki::{ErrorCode, Request, Response, handler};

#[handler]
fn hello(request: Request) -> Result<Response, ErrorCode> {
    let path = request.path().to_owned();
    let body = request.body().map_err(|error| ErrorCode::InternalError(Some(error.to_string())))?;
    let mut text = format!("hello from waki at {path}\n").into_bytes();
    text.extend(body);
    Response::builder().body(text).build()
}
