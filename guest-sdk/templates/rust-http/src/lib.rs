//! `{{ name }}` answers HTTP requests. Every request runs on a fresh instance: statics do not keep
//! their values between requests.

use weir::{Request, Response, Result};

fn handle(request: Request) -> Result<Response> {
    match (request.method(), request.path()) {
        ("GET", "/") => Ok(Response::text("hello from {{ name }}\n")),
        ("POST", "/shout") => {
            let text = shout(&request.body_text()?);
            // Standard output and error go to `weir logs {{ name }}`.
            println!("shouted {} bytes", text.len());
            Ok(Response::text(text))
        }
        _ => Ok(Response::text("there are GET / and POST /shout\n").with_status(404)),
    }
}

fn shout(text: &str) -> String {
    text.to_uppercase()
}

weir::http_function!(handle);

#[cfg(test)]
mod tests {
    #[test]
    fn shouting_is_in_capitals() {
        assert_eq!(super::shout("grüezi"), "GRÜEZI");
    }
}
