//! A router together with the paths of its routes.

use super::NodeState;
use super::error::ApiError;
use super::permission::{RouteAccess, guard};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::MethodRouter;
use std::sync::Arc;
use weir_types::ErrorCode;

/// Router under construction, and the paths of its routes.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Arc<NodeState>>,
    /// Paths that the OpenAPI document describes.
    documented: Vec<String>,
}

impl Routes {
    /// Adds a route that the OpenAPI document must describe, with the access that its clients need.
    pub(super) fn route(
        mut self,
        path: &str,
        access: RouteAccess,
        methods: MethodRouter<Arc<NodeState>>,
    ) -> Self {
        self.documented.push(path.to_owned());
        let methods =
            methods.route_layer(from_fn(move |request: Request, next: Next| guard(access, request, next)));
        Self { router: self.router.route(path, methods), ..self }
    }

    /// Adds a route that the OpenAPI document leaves out, and that any client may use.
    pub(super) fn undocumented_route(self, path: &str, methods: MethodRouter<Arc<NodeState>>) -> Self {
        Self { router: self.router.route(path, methods), ..self }
    }

    /// Adds the routes of `other`.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.documented.extend(other.documented);
        Self { router: self.router.merge(other.router), ..self }
    }

    /// Changes the router without changing its paths.
    pub(super) fn with(self, change: impl FnOnce(Router<Arc<NodeState>>) -> Router<Arc<NodeState>>) -> Self {
        Self { router: change(self.router), ..self }
    }

    /// Paths of the routes that the OpenAPI document must describe.
    pub(super) fn into_documented_paths(self) -> Vec<String> {
        self.documented
    }

    /// Returns the router, which answers requests outside its routes with errors of the API.
    pub(super) fn into_router(self, node: Arc<NodeState>) -> Router {
        self.router
            .method_not_allowed_fallback(async || {
                ApiError::new(ErrorCode::MethodNotAllowed, "this route does not take that method; see GET /")
            })
            .fallback(async |request: Request| {
                let text = format!("there is nothing at {}; see GET /", request.uri().path());
                ApiError::new(ErrorCode::RouteNotFound, text)
            })
            .with_state(node)
    }
}
