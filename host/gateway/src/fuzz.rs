//! Checks of the parsers of requests with arbitrary bytes, for fuzz targets and for tests without a
//! fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

use crate::error::ApiError;
use crate::prefer::PreferHeader;
use crate::request_id::RequestId;
use crate::{canary, grpc, invoke, manifest, v2};
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};
use weir_call::headers::{CALLBACK, IDEMPOTENCY_KEY};
use weir_device::Arena;
use weir_telemetry::TraceParent;
use weir_types::{FunctionManifest, ModelManifest};

/// Size limit of an upload in a check.
const UPLOAD_BYTES_MAX: u64 = 1 << 20;
/// Size limit of a body in a check, without and with compression.
const BODY_BYTES_MAX: u64 = 1 << 20;
/// Length limit of an idempotency key.
const KEY_LEN_MAX: usize = 255;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime without I/O starts"));

/// Reads or refuses the headers of a request: a line for each header.
pub fn headers(bytes: &[u8]) {
    let headers = header_lines(bytes);
    let mut rest = headers.clone();
    match PreferHeader::take(&mut rest) {
        Ok(Some(options)) => {
            assert!(options.key.is_none_or(|key| (1..=KEY_LEN_MAX).contains(&key.len())));
            assert!(!rest.contains_key(IDEMPOTENCY_KEY) && !rest.contains_key(CALLBACK));
            let again = PreferHeader::take(&mut rest.clone());
            assert_eq!(again.ok(), Some(None), "a preference for an asynchronous answer is left: {rest:?}");
        }
        Ok(None) => assert_eq!(rest, headers, "headers of a synchronous request are changed"),
        Err(_) => {}
    }
    assert!(RequestId::from_headers(&headers).as_str().len() <= headers.len().max(1) * 128);
    let _ = TraceParent::from_headers(&headers);
    let _ = (invoke::priority(&headers), invoke::content_length(&headers));
    let _ = canary::VersionChoice::from_headers(&headers).key();
    v2::fuzz::encodings(&headers);
}

/// Reads or refuses an upload. The first two lines are the query and the content type, and the other
/// bytes are the body, which arrives in parts.
pub fn upload(bytes: &[u8]) {
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let query = line();
    let content_type = line();
    let body = line();
    let query = String::from_utf8_lossy(query);
    let Ok(uri) = format!("/v1/functions/f?{query}").parse::<Uri>() else { return };
    let Ok(content_type) = HeaderValue::from_bytes(content_type) else { return };
    let part_len = (body.len() / 3).max(1);
    let parts: Vec<Bytes> = body.chunks(part_len).map(Bytes::copy_from_slice).collect();
    let request = || {
        let parts = stream::iter(parts.clone().into_iter().map(Ok::<_, Infallible>));
        let mut request = Request::new(Body::from_stream(parts));
        *request.uri_mut() = uri.clone();
        request.headers_mut().insert(CONTENT_TYPE, content_type.clone());
        request
    };
    RUNTIME.block_on(async {
        receive::<FunctionManifest>(request(), body.len()).await;
        receive::<ModelManifest>(request(), body.len()).await;
    });
}

/// A file of an upload has no more bytes than its body.
async fn receive<M: DeserializeOwned>(request: Request, body_bytes: usize) {
    let received: Result<(M, _, _), ApiError> = manifest::read(request, UPLOAD_BYTES_MAX).await;
    let Ok((_, _, mut file)) = received else { return };
    let mut file_bytes = 0;
    while let Some(Ok(piece)) = file.next().await {
        file_bytes += piece.len();
    }
    assert!(file_bytes <= body_bytes);
}

/// Decodes or refuses a message of each method that takes one over gRPC.
pub fn grpc(bytes: &[u8]) {
    grpc::fuzz::messages(&Bytes::copy_from_slice(bytes));
}

/// Decompresses or refuses a body. The first byte chooses the encoding and the limit.
pub fn encoding(bytes: &[u8]) {
    let Some((first, body)) = bytes.split_first() else { return };
    let arena = Arena::new(8 << 20);
    v2::fuzz::body(*first, body, &arena, BODY_BYTES_MAX);
    assert_eq!(arena.used_bytes(), 0, "memory of a body is not released");
}

/// The headers of the lines that are headers.
fn header_lines(bytes: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::from_bytes(parts.next().unwrap_or_default());
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            let _ = headers.try_append(name, value);
        }
    }
    headers
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        seeds("headers").iter().for_each(|seed| headers(seed));
        seeds("upload").iter().for_each(|seed| upload(seed));
        seeds("grpc").iter().for_each(|seed| grpc(seed));
        seeds("encoding").iter().for_each(|seed| encoding(seed));
    }

    proptest! {
        #[test]
        fn mutated_headers_are_read_or_refused(bytes in mutated("headers")) {
            headers(&bytes);
        }

        #[test]
        fn mutated_uploads_are_read_or_refused(bytes in mutated("upload")) {
            upload(&bytes);
        }

        #[test]
        fn mutated_grpc_messages_are_read_or_refused(bytes in mutated("grpc")) {
            grpc(&bytes);
        }

        #[test]
        fn mutated_compressed_bodies_are_read_or_refused(bytes in mutated("encoding")) {
            encoding(&bytes);
        }
    }
}
