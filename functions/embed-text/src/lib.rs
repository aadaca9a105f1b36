//! Sentences into embeddings, and how alike two of them are. The sentences are cut into tokens here; the model `minilm` runs on the node.
//!
//! Building the tokenizer from its vocabulary takes longer than all the rest of a request, so the component is made to be snapshotted
//! (`weir build --snapshot`): its export `wizer-initialize` builds it once, and every instance starts with it in memory.

mod api;
mod tokens;

mod model;
mod snapshot;

use api::Reply;
use wstd::http::{Body, Error, Request, Response};

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let (head, mut body) = request.into_parts();
    let body = body.contents().await?;
    let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
    let answer = api::answer(head.method.as_str(), head.uri.path(), content_type, body, model::embeddings);
    let (status, content_type, text) = match answer {
        Ok(Reply::Usage(text)) => (200, "text/plain; charset=utf-8", text.to_owned()),
        Ok(Reply::Answer(answer)) => (200, "application/json", serde_json::to_string(&answer)?),
        Err(error) => {
            (error.status(), "application/json", serde_json::json!({"error": error.to_string()}).to_string())
        }
    };
    Ok(Response::builder().status(status).header("content-type", content_type).body(text.into())?)
}
