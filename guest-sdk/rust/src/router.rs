//! Routes requests by method and path, with [`matchit`]'s patterns.

use crate::{Error, Request, Response, Result};
use percent_encoding::percent_decode_str;
use std::str::FromStr;

type Handler = Box<dyn Fn(Request, &Params) -> Result<Response>>;

/// Dispatches a request to the handler of its method and path.
///
/// Patterns follow [`matchit`](https://docs.rs/matchit): `{name}` matches one segment, `{*rest}`
/// matches all remaining segments. A path without a matching pattern is answered with 404. A method
/// without a handler is answered with 405 and the allowed methods.
///
/// ```
/// use weir::{Request, Response, Result, Router};
///
/// fn handle(request: Request) -> Result<Response> {
///     Router::new()
///         .get("/", |_, _| Ok(Response::text("try /square/7\n")))
///         .get("/square/{n}", |_, params| {
///             let n: u32 = params.parse("n")?;
///             Ok(Response::text(format!("{}\n", u64::from(n) * u64::from(n))))
///         })
///         .handle(request)
/// }
///
/// weir::http_function!(handle);
/// ```
#[derive(Default)]
pub struct Router {
    paths: matchit::Router<usize>,
    /// Handlers of each pattern, by method.
    handlers: Vec<Vec<(&'static str, Handler)>>,
    /// Patterns, in the order of `handlers`.
    patterns: Vec<String>,
    /// The first invalid route, with the reason.
    broken: Option<String>,
}

/// Named parts of a path, as matched by a pattern.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Params(Vec<(String, String)>);

enum Found<'a> {
    Handler(&'a Handler, Params),
    Methods(Vec<&'static str>),
    Nothing,
}

impl Router {
    /// Creates a router without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler for GET, and for HEAD unless HEAD has its own handler.
    #[must_use]
    pub fn get(self, path: &str, handler: impl Fn(Request, &Params) -> Result<Response> + 'static) -> Self {
        self.route("GET", path, handler)
    }

    /// Adds a handler for POST.
    #[must_use]
    pub fn post(self, path: &str, handler: impl Fn(Request, &Params) -> Result<Response> + 'static) -> Self {
        self.route("POST", path, handler)
    }

    /// Adds a handler for `method`, in capitals. After an invalid or conflicting pattern, every
    /// request is answered with 500 and the reason.
    #[must_use]
    pub fn route(
        mut self,
        method: &'static str,
        path: &str,
        handler: impl Fn(Request, &Params) -> Result<Response> + 'static,
    ) -> Self {
        if let Err(error) = self.insert(method, path, Box::new(handler)) {
            self.broken.get_or_insert(format!("the route {method} {path} cannot be taken: {error}"));
        }
        self
    }

    fn insert(&mut self, method: &'static str, path: &str, handler: Handler) -> Result<(), String> {
        let index = match self.patterns.iter().position(|pattern| pattern == path) {
            Some(index) => index,
            None => {
                self.paths.insert(path, self.handlers.len()).map_err(|error| error.to_string())?;
                self.patterns.push(path.to_owned());
                self.handlers.push(Vec::new());
                self.handlers.len() - 1
            }
        };
        let methods = &mut self.handlers[index];
        if methods.iter().any(|(known, _)| *known == method) {
            return Err("it is there already".to_owned());
        }
        methods.push((method, handler));
        Ok(())
    }

    /// Dispatches a request and returns the response.
    pub fn handle(&self, request: Request) -> Result<Response> {
        if let Some(why) = &self.broken {
            return Err(Error::new(500, why.clone()));
        }
        match self.find(request.method(), request.path()) {
            Found::Handler(handler, params) => handler(request, &params),
            Found::Methods(methods) => {
                let allowed = methods.join(", ");
                let text = format!("{} does not go here; {allowed} does\n", request.method());
                Ok(Response::text(text).with_status(405).with_header("allow", allowed))
            }
            Found::Nothing => Err(Error::new(404, format!("there is nothing at {}", request.path()))),
        }
    }

    fn find(&self, method: &str, path: &str) -> Found<'_> {
        let Ok(matched) = self.paths.at(path) else { return Found::Nothing };
        let methods = &self.handlers[*matched.value];
        let of = |wanted: &str| methods.iter().find(|(known, _)| *known == wanted);
        let Some((_, handler)) = of(method).or_else(|| of("GET").filter(|_| method == "HEAD")) else {
            return Found::Methods(methods.iter().map(|(known, _)| *known).collect());
        };
        let decoded = |value: &str| percent_decode_str(value).decode_utf8_lossy().into_owned();
        let params = matched.params.iter().map(|(name, value)| (name.to_owned(), decoded(value)));
        Found::Handler(handler, Params(params.collect()))
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("patterns", &self.patterns).finish_non_exhaustive()
    }
}

impl Params {
    /// The part named `name`, percent-decoded.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The part named `name`, parsed to `T`. A parse error becomes a 400 response.
    pub fn parse<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T> {
        let Some(text) = self.get(name) else {
            return Err(Error::new(500, format!("the route has no part called {name}")));
        };
        text.parse().map_err(|error| Error::new(400, format!("{text:?} is no good as {name}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: Request, _: &Params) -> Result<Response> {
        Ok(Response::new(204))
    }

    fn params(router: &Router, method: &str, path: &str) -> Option<Params> {
        match router.find(method, path) {
            Found::Handler(_, params) => Some(params),
            _ => None,
        }
    }

    #[test]
    fn router_dispatches_and_extracts_params() {
        let router = Router::new()
            .get("/", nothing)
            .get("/users/{id}", nothing)
            .route("DELETE", "/users/{id}", nothing)
            .post("/files/{*path}", nothing);
        assert_eq!(params(&router, "GET", "/"), Some(Params::default()));
        let found = params(&router, "DELETE", "/users/a%20b").unwrap();
        assert_eq!(found.get("id"), Some("a b"));
        assert_eq!(params(&router, "POST", "/files/a/b").unwrap().get("path"), Some("a/b"));
        assert!(params(&router, "HEAD", "/users/7").is_some(), "GET answers HEAD");
        assert_eq!(params(&router, "GET", "/users/7").unwrap().parse::<u8>("id"), Ok(7));
        assert_eq!(params(&router, "GET", "/users/x").unwrap().parse::<u8>("id").unwrap_err().status(), 400);
    }

    #[test]
    fn router_distinguishes_404_and_405() {
        let router = Router::new().get("/a", nothing).post("/a", nothing);
        assert!(matches!(router.find("PUT", "/a"), Found::Methods(methods) if methods == ["GET", "POST"]));
        assert!(matches!(router.find("GET", "/b"), Found::Nothing));
    }

    #[test]
    fn conflicting_routes_answer_500() {
        assert!(Router::new().get("/a", nothing).get("/a", nothing).broken.is_some());
        assert!(Router::new().get("/{a}", nothing).get("/{b}", nothing).broken.is_some());
        assert!(Router::new().get("/{", nothing).broken.is_some());
        assert!(Router::new().get("/a", nothing).post("/a", nothing).broken.is_none());
    }
}
