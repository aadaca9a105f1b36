//! `/v1/objects`: tensors stored under names.

use super::Caller;
use super::error::ApiError;
use super::routes::Routes;
use super::table::DATA;
use super::versions::parse_name;
use crate::state::NodeExtractor;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Extension, Json};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use http_body::Body as _;
use serde::Deserialize;
use std::time::Duration;
use weir_call::body::{BodyLimit, WholeBody, receive_whole};
use weir_control::objects::ObjectError;
use weir_inference::Tensor;
use weir_types::api::{DATATYPE_HEADER, Object, SHAPE_HEADER};
use weir_types::{ElementType, ErrorCode, Shape};

pub(super) fn routes() -> Routes {
    Routes::default()
        .route("/v1/objects", DATA, get(list))
        .route("/v1/objects/{name}", DATA, put(keep).get(show).delete(remove))
        .route("/v1/objects/{name}/data", DATA, get(data))
}

/// Query of `PUT /v1/objects/{name}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PutQuery {
    /// Element type; none for plain bytes.
    datatype: Option<ElementType>,
    /// Dimensions, separated by commas; none for one dimension, whose size follows from the body.
    shape: Option<String>,
    ttl_ms: Option<u64>,
}

/// `PUT /v1/objects/{name}`: the body is the data.
async fn keep(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<PutQuery>, QueryRejection>,
    request: Request,
) -> Result<Json<Object>, ApiError> {
    let Query(query) = query.map_err(|error| {
        let takes = "takes datatype=UINT8|FP32|..., shape=N,N,... and ttl_ms=N";
        ApiError::new(ErrorCode::InvalidRequest, format!("{error}; {takes}"))
    })?;
    let name = parse_name(&name)?;
    let bytes_max = node.objects.object_bytes_max();
    let time_ms_max = node.config.gateway.upload_timeout_ms;
    let length = request.body().size_hint().exact();
    let limit = BodyLimit { bytes_max, setting: "objects.object_bytes_max" };
    let arena = node.arena.tenant(&caller.tenant);
    let receiving = receive_whole(request.into_body(), length, &arena, limit);
    let received = tokio::time::timeout(Duration::from_millis(time_ms_max), receiving).await;
    let body = received.map_err(|_| {
        let text = format!("the data did not arrive within {time_ms_max} ms (gateway.upload_timeout_ms)");
        ApiError::new(ErrorCode::DeadlineExceeded, text)
    })??;
    let datatype = query.datatype.unwrap_or(ElementType::Uint8);
    let shape = match &query.shape {
        Some(text) => parse_shape(text)?,
        None => only_dimension(datatype, body.len())?,
    };
    let tensor = Tensor::new(datatype, shape, body).map_err(|error| {
        ApiError::new(ErrorCode::InvalidRequest, format!("the data is no tensor: {error}"))
    })?;
    Ok(Json(node.objects.put(&caller.tenant, &name, &tensor, query.ttl_ms).await?))
}

/// `GET /v1/objects`, sorted by name.
async fn list(State(node): NodeExtractor, Extension(caller): Extension<Caller>) -> Json<Vec<Object>> {
    Json(node.objects.list(&caller.tenant))
}

/// `GET /v1/objects/{name}`.
async fn show(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Object>, ApiError> {
    Ok(Json(node.objects.describe(&caller.tenant, &parse_name(&name)?).await?))
}

/// `GET /v1/objects/{name}/data`: the data, described in headers.
async fn data(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let name = parse_name(&name)?;
    let (object, tensor) = node.objects.get(&caller.tenant, &name).await?;
    let shape = object.shape.dimensions().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let header = |text: String| HeaderValue::try_from(text).map_err(|error| ApiError::internal(&error));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (CONTENT_LENGTH, HeaderValue::from(object.bytes)),
        (ETAG, header(format!("\"{}\"", object.digest))?),
    ];
    let described = [
        (DATATYPE_HEADER, HeaderValue::from_static(object.datatype.as_str())),
        (SHAPE_HEADER, header(shape)?),
    ];
    let body = bytes::Bytes::from(tensor.into_data());
    Ok((headers, described, Extension(WholeBody), axum::body::Body::from(body)).into_response())
}

/// `DELETE /v1/objects/{name}`.
async fn remove(
    State(node): NodeExtractor,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    node.objects.remove(&caller.tenant, &parse_name(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn parse_shape(text: &str) -> Result<Shape, ApiError> {
    let wrong = |why: String| ApiError::new(ErrorCode::InvalidRequest, format!("shape={text:?}: {why}"));
    let sizes = text.split(',').filter(|size| !size.is_empty());
    let sizes = sizes.map(|size| size.trim().parse().map_err(|_| wrong(format!("{size:?} is no size"))));
    let sizes = sizes.collect::<Result<Vec<u32>, _>>()?;
    Shape::new(&sizes).map_err(|error| wrong(error.to_string()))
}

fn only_dimension(datatype: ElementType, bytes: usize) -> Result<Shape, ApiError> {
    let wrong = |text: String| ApiError::new(ErrorCode::InvalidRequest, text);
    let size_bytes = datatype.size_bytes().ok_or_else(|| {
        wrong(format!("elements of {datatype} differ in length: say how many with shape=N"))
    })?;
    let len = u32::try_from(bytes / size_bytes)
        .map_err(|_| wrong("say the dimensions with shape=N,N,...".into()))?;
    Shape::new(&[len]).map_err(|error| wrong(error.to_string()))
}

impl From<ObjectError> for ApiError {
    fn from(error: ObjectError) -> Self {
        match (error.code(), error) {
            (_, ObjectError::Blob(error)) => error.into(),
            (code, error) => Self::new(code, error.to_string()),
        }
    }
}
