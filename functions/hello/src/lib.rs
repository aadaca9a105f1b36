//! Greets: `/` says hello, `/{name}` greets by name. The smallest function: it uses no model.

use weir::{Request, Response};

fn greet(request: Request) -> Response {
    match request.path().trim_matches('/') {
        "" => Response::text("hello\n"),
        name => Response::text(format!("hello, {name}\n")),
    }
}

weir::http_function!(greet);
