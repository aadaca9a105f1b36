//! HTTP requests and responses over `wasi:http` 0.2, with as few host calls as possible.

mod request;
mod response;

pub use request::Request;
pub use response::Response;
pub(crate) use response::write;

use wasip2::http::types::{IncomingRequest, ResponseOutparam};

/// Exports a handler as an HTTP component. The handler is a `fn(Request) -> R`, where `R` converts
/// into a [`Response`](crate::Response), such as a result. Use the macro once per crate.
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

/// Implementation of [`http_function`].
pub fn serve<R: Into<Response>>(
    handler: impl FnOnce(Request) -> R,
    request: IncomingRequest,
    out: ResponseOutparam,
) {
    let response: Response = handler(Request::new(request)).into();
    response.send(out);
}
