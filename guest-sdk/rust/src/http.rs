//! HTTP in and out, over `wasi:http` 0.2, with as few calls to the node as it takes.

mod request;
mod response;

pub use request::Request;
pub use response::Response;

use wasip2::http::types::{IncomingRequest, ResponseOutparam};

/// Make a component of a function that answers HTTP requests: a `fn(Request) -> R`, where `R` is anything that becomes a
/// [`Response`](crate::Response), results included. Once in a crate.
///
/// ```
/// use weir::{Request, Response, Result};
///
/// fn handle(request: Request) -> Result<Response> {
///     match (request.method(), request.path()) {
///         ("GET", "/") => Ok(Response::text("hello\n")),
///         ("POST", "/length") => Ok(Response::text(format!("{}\n", request.body()?.len()))),
///         _ => Ok(Response::new(404)),
///     }
/// }
///
/// weir::http_function!(handle);
/// ```
#[macro_export]
macro_rules! http_function {
    ($handler:path) => {
        const _: () = {
            struct WeirFunction;

            impl $crate::__private::wasip2::exports::http::incoming_handler::Guest for WeirFunction {
                fn handle(
                    request: $crate::__private::wasip2::http::types::IncomingRequest,
                    out: $crate::__private::wasip2::http::types::ResponseOutparam,
                ) {
                    $crate::__private::serve($handler, request, out);
                }
            }

            $crate::__private::wasip2::http::proxy::export!(WeirFunction with_types_in $crate::__private::wasip2);
        };
    };
}

/// What [`http_function`] expands to.
pub fn serve<R: Into<Response>>(
    handler: impl FnOnce(Request) -> R,
    request: IncomingRequest,
    out: ResponseOutparam,
) {
    let response: Response = handler(Request::new(request)).into();
    response.send(out);
}
