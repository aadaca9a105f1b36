//! Greets: `/` says hello, `/{name}` says it to somebody. The smallest function there is: it uses no model.

use weir::{Request, Response};

fn greet(request: Request) -> Response {
    match request.path().trim_matches('/') {
        "" => Response::text("hello\n"),
        name => Response::text(format!("hello, {name}\n")),
    }
}

weir::http_function!(greet);
