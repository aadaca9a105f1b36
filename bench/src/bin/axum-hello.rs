//! Baseline without a sandbox: axum with its defaults and one route.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The same response as the hello function's, including headers.
    let hello = get(async || ([(CONTENT_TYPE, "text/plain; charset=utf-8")], "hello\n"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, Router::new().route("/", hello)).await?;
    Ok(())
}
