//! Manifests of uploads: from a multipart field, a header or the query, or by default.
//!
//! `curl -T fn.wasm URL` is enough to deploy. `?models=digits&limits.deadline_ms=500` sets values
//! without a file, the `weir-manifest` header takes JSON, and a multipart form has the fields
//! `component` and `manifest`. A form with a `model` also has `labels`, one label per line.

use super::canary::parse_share;
use super::error::ApiError;
use super::shadow;
use axum::extract::Request;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Uri};
use http_body::Body as _;
use multer::{Field, Multipart};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weir_control::canary::{CanaryShare, ShadowShare};
use weir_control::registry::InactiveRole;
use weir_telemetry::logs::now_ms;
use weir_types::api::MANIFEST_HEADER;
use weir_types::{ContentHash, ErrorCode, LABELS_BYTES_MAX, Labels};

/// Size limit of a manifest.
const MANIFEST_BYTES_MAX: usize = 256 << 10;
/// Size limit of a form around its file: manifest, labels, and room for the heads of its fields.
const FORM_BYTES_MAX: u64 = (MANIFEST_BYTES_MAX + LABELS_BYTES_MAX + (256 << 10)) as u64;
/// Field with the labels of a model's only output.
const LABELS_FIELD: &str = "labels";
/// Start of the names of fields with labels. The name of the output follows.
const LABELS_OF: &str = "labels.";

/// File of an upload, still arriving.
pub(super) type UploadStream = BoxStream<'static, Result<Bytes, axum::Error>>;

/// Options of an upload in the query, in addition to the manifest.
#[derive(Debug, Default)]
pub(super) struct UploadOptions {
    /// Rejects a component with imports that the manifest does not grant.
    pub(super) strict: bool,
    /// Permits a model whose inputs and outputs do not fit users of the version before it.
    pub(super) allow_signature_change: bool,
    /// Deploys a canary with this share of the calls.
    pub(super) canary: Option<CanaryShare>,
    /// Deploys a shadow with copies of this percentage of the calls.
    pub(super) shadow: Option<ShadowShare>,
    /// Deploys a version that gets only the calls that name it.
    pub(super) preview: bool,
    /// Checks the deployment, and describes the version that it would make.
    pub(super) dry_run: bool,
    /// Deploys the component of an earlier version, instead of a component in the body.
    pub(super) digest: Option<ContentHash>,
}

impl UploadOptions {
    /// The role of the new version, if it does not become active.
    pub(super) fn role(&self) -> Option<InactiveRole> {
        let now_ms = now_ms();
        let canary = self.canary.map(|share| InactiveRole::Canary { share, now_ms });
        let shadow = self.shadow.map(|share| InactiveRole::Shadow { share, now_ms });
        canary.or(shadow).or_else(|| self.preview.then_some(InactiveRole::Preview))
    }
}

/// Reads the manifest of an upload, and returns its file as a stream. An upload whose declared size
/// is above `bytes_max` is rejected before it is read.
pub(super) async fn read<M: DeserializeOwned>(
    request: Request,
    bytes_max: u64,
) -> Result<(M, UploadOptions, UploadStream), ApiError> {
    let form_bytes = if is_multipart(request.headers()) { FORM_BYTES_MAX } else { 0 };
    let declared = request.body().size_hint().lower();
    if declared > bytes_max.saturating_add(form_bytes) {
        let text = format!("the upload has {declared} bytes, and this node takes {bytes_max}");
        return Err(ApiError::new(ErrorCode::BodyTooLarge, text));
    }
    let (mut manifest, options) = from_query(request.uri())?;
    if let Some(given) = from_header(request.headers())? {
        merge(&mut manifest, given);
    }
    let upload = if is_multipart(request.headers()) {
        let (given, file) = from_form(request).await?;
        merge(&mut manifest, given);
        file
    } else {
        whole_body(request)
    };
    let manifest =
        serde_path_to_error::deserialize(Value::Object(manifest)).map_err(|error| invalid(&error))?;
    Ok((manifest, options, upload))
}

/// Rejects an SLO of zero, which no call can meet.
pub(super) fn check_slo(slo_ms: Option<u64>) -> Result<(), ApiError> {
    if slo_ms == Some(0) {
        return Err(invalid(&"slo_ms must be at least 1; leave it out for no SLO"));
    }
    Ok(())
}

fn whole_body(request: Request) -> UploadStream {
    request.into_body().into_data_stream().boxed()
}

fn invalid(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidManifest, format!("the manifest cannot be read: {error}"))
}

/// Reads the manifest and options in a query. `a.b=c` sets `{"a": {"b": c}}`, and manifests are not
/// nested deeper; a value is JSON if it parses as JSON, else text. Lists are separated by commas.
fn from_query(uri: &Uri) -> Result<(Map<String, Value>, UploadOptions), ApiError> {
    let mut manifest = Map::new();
    let mut options = UploadOptions::default();
    let mut percent = None;
    let mut copied_percent = None;
    let mut promote_after_ms = None;
    for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        match &*key {
            "strict" => options.strict = is_set(&value),
            "allow_signature_change" => options.allow_signature_change = is_set(&value),
            "preview" => options.preview = is_set(&value),
            "dry_run" => options.dry_run = is_set(&value),
            "digest" => options.digest = Some(parse_digest(&value)?),
            "canary" => percent = Some(value),
            "shadow" => copied_percent = Some(value),
            "promote_after_ms" => promote_after_ms = Some(value),
            "manifest" => merge(&mut manifest, parse(value.as_bytes())?),
            "models" | "secrets" | "outbound_hosts" | "objects.read" | "objects.write" => {
                let items = value.split(',').filter(|item| !item.is_empty()).map(Value::from).collect();
                merge(&mut manifest, at(&key, Value::Array(items)));
            }
            "batching.preferred_sizes" => {
                let sizes = value.split(',').filter(|size| !size.is_empty());
                let sizes =
                    sizes.map(|size| serde_json::from_str(size).unwrap_or_else(|_| Value::from(size)));
                merge(&mut manifest, at(&key, Value::Array(sizes.collect())));
            }
            path => {
                let value = serde_json::from_str(&value).unwrap_or_else(|_| Value::from(&*value));
                merge(&mut manifest, at(path, value));
            }
        }
    }
    // Environment variables are text, even if they look like numbers.
    if let Some(Value::Object(env)) = manifest.get_mut("env") {
        env.values_mut()
            .filter(|value| !value.is_string())
            .for_each(|value| *value = Value::from(value.to_string()));
    }
    options.canary = parse_share(percent.as_deref(), promote_after_ms.as_deref())?;
    options.shadow = shadow::parse_share(copied_percent.as_deref())?;
    let roles = [options.preview, options.canary.is_some(), options.shadow.is_some()];
    if roles.into_iter().filter(|is_set| *is_set).count() > 1 {
        let text = "a new version has one role: leave out all but one of preview, canary and shadow";
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    Ok((manifest, options))
}

fn parse_digest(text: &str) -> Result<ContentHash, ApiError> {
    text.parse().map_err(|error| ApiError::new(ErrorCode::InvalidRequest, format!("digest={text}: {error}")))
}

/// Whether the value of an option means that it is set.
fn is_set(value: &str) -> bool {
    matches!(value, "" | "true" | "1")
}

/// Returns an object with `value` at `path`.
fn at(path: &str, value: Value) -> Map<String, Value> {
    match path.split_once('.') {
        Some((outer, inner)) => {
            let inner = Map::from_iter([(inner.to_owned(), value)]);
            Map::from_iter([(outer.to_owned(), Value::Object(inner))])
        }
        None => Map::from_iter([(path.to_owned(), value)]),
    }
}

fn from_header(headers: &HeaderMap) -> Result<Option<Map<String, Value>>, ApiError> {
    headers.get(MANIFEST_HEADER).map(|value| parse(value.as_bytes())).transpose()
}

fn parse(json: &[u8]) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_slice(json).map_err(|error| invalid(&error))
}

fn is_multipart(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| value.starts_with("multipart/form-data"))
}

/// Reads a form. Its fields arrive in order: the manifest and labels, if any, come before the file.
async fn from_form(request: Request) -> Result<(Map<String, Value>, UploadStream), ApiError> {
    let content_type =
        request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).map_err(|error| broken(&error))?;
    let mut form = Multipart::new(request.into_body().into_data_stream(), boundary);
    let mut manifest = Map::new();
    let mut labels_bytes_left = LABELS_BYTES_MAX;
    while let Some(field) = form.next_field().await.map_err(|error| broken(&error))? {
        let name = field.name().map(str::to_owned);
        match name.as_deref() {
            Some("manifest") => merge(&mut manifest, parse(&read_small(field, MANIFEST_BYTES_MAX).await?)?),
            Some("component" | "model") => return Ok((manifest, file(form, field))),
            Some(name) if name == LABELS_FIELD || name.starts_with(LABELS_OF) => {
                let lines = read_small(field, labels_bytes_left).await?;
                labels_bytes_left -= lines.len();
                add_labels(&mut manifest, name, &lines)?;
            }
            other => {
                let text = format!(
                    "the form has a field {other:?}; it takes `manifest`, `labels` of a model, and then `component` (or `model`)"
                );
                return Err(ApiError::new(ErrorCode::InvalidRequest, text));
            }
        }
    }
    Err(ApiError::new(
        ErrorCode::InvalidRequest,
        "the form has no field `component` (or `model`) with the file",
    ))
}

fn broken(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the form cannot be read: {error}"))
}

/// Adds the labels of a field to a manifest, one per line.
fn add_labels(manifest: &mut Map<String, Value>, field: &str, lines: &[u8]) -> Result<(), ApiError> {
    let lines = std::str::from_utf8(lines)
        .map_err(|error| invalid(&format!("the field {field:?} is not UTF-8: {error}")))?;
    let labels = Labels::from_lines(lines).iter().map(Value::from).collect();
    let known = manifest.entry(LABELS_FIELD);
    let is_new = match (field.strip_prefix(LABELS_OF), known.or_insert_with(|| Value::Object(Map::new()))) {
        (Some(output), Value::Object(known)) => known.insert(output.to_owned(), labels).is_none(),
        (None, Value::Object(known)) if known.is_empty() => {
            manifest.insert(LABELS_FIELD.to_owned(), labels);
            true
        }
        _ => false,
    };
    if is_new { Ok(()) } else { Err(invalid(&format!("the field {field:?} gives labels again"))) }
}

async fn read_small(mut field: Field<'static>, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| broken(&error))? {
        if bytes.len() + piece.len() > bytes_max {
            let name = field.name().unwrap_or_default();
            return Err(invalid(&format!("the field {name:?} has more than {bytes_max} bytes")));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Streams the last field of a form. Another field after it is an error, since its value would be
/// lost.
fn file(form: Multipart<'static>, field: Field<'static>) -> UploadStream {
    stream::try_unfold((form, Some(field)), async |(mut form, field)| {
        let Some(mut field) = field else { return Ok(None) };
        if let Some(piece) = field.chunk().await.map_err(axum::Error::new)? {
            return Ok(Some((piece, (form, Some(field)))));
        }
        drop(field);
        match form.next_field().await.map_err(axum::Error::new)? {
            None => Ok(None),
            Some(_) => Err(axum::Error::new(
                "the file must be the form's last field; put the other fields before it",
            )),
        }
    })
    .boxed()
}

/// Merges `over` into `base`, object by object.
fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => merge(inner, value),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use weir_types::{FunctionManifest, ModelManifest};

    async fn read_all(request: Request) -> Result<(FunctionManifest, UploadOptions, Vec<u8>), ApiError> {
        let (manifest, options, mut upload) = read(request, u64::MAX).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = upload.next().await {
            bytes.extend_from_slice(&piece.map_err(|error| broken(&error))?);
        }
        Ok((manifest, options, bytes))
    }

    fn put(uri: &str, headers: &[(&str, &str)], body: &str) -> Request {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    }

    #[tokio::test]
    async fn plain_upload_has_the_default_manifest() {
        let (manifest, options, bytes) = read_all(put("/v1/functions/f", &[], "wasm")).await.unwrap();
        assert_eq!((manifest, options.strict, bytes), (FunctionManifest::default(), false, b"wasm".to_vec()));
    }

    #[tokio::test]
    async fn query_header_and_form_are_merged() {
        let uri = "/v1/functions/f?models=a,b:2&limits.deadline_ms=500&env.N=1&strict=true";
        let (manifest, options, _) =
            read_all(put(uri, &[(MANIFEST_HEADER, r#"{"limits":{"handles":7}}"#)], "")).await.unwrap();
        assert_eq!(manifest.models.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "b:2"]);
        assert_eq!((manifest.limits.deadline_ms, manifest.limits.handles), (500, 7));
        assert_eq!(manifest.env["N"], "1");
        assert!(options.strict);

        let form = "--x\r\ncontent-disposition: form-data; name=manifest\r\n\r\n{\"models\":[\"a\"]}\r\n\
            --x\r\ncontent-disposition: form-data; name=component\r\n\r\nwasm\r\n--x--\r\n";
        let headers = [("content-type", "multipart/form-data; boundary=x")];
        let (manifest, _, bytes) = read_all(put("/v1/functions/f", &headers, form)).await.unwrap();
        assert_eq!((manifest.models.len(), bytes), (1, b"wasm".to_vec()));
    }

    #[tokio::test]
    async fn query_sets_slots_and_batching_of_a_model() {
        let uri = "/v1/models/m?slots=2&batching.mode=on&batching.size_max=16&batching.preferred_sizes=4,8";
        let (manifest, ..) =
            read::<ModelManifest>(put(uri, &[], ""), u64::MAX).await.map_err(|error| error.text).unwrap();
        assert_eq!((manifest.slots, manifest.batching.preferred_sizes.clone()), (Some(2), vec![4, 8]));
        assert_eq!(manifest.batching.to_string(), "on, up to 16, preferably 4 or 8");
        for uri in ["/m?batching.preferred_sizes=4,x", "/m?batching.mode=maybe", "/m?batching=off"] {
            let code =
                read::<ModelManifest>(put(uri, &[], ""), u64::MAX).await.map_err(|error| error.code).err();
            assert_eq!(code, Some(ErrorCode::InvalidManifest), "{uri}");
        }
    }

    /// A form with these fields before the model.
    fn form(fields: &[(&str, &str)]) -> Request {
        let field = |(name, value): &(&str, &str)| {
            format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let fields: String = fields.iter().chain([&("model", "onnx")]).map(field).collect();
        put("/m", &[("content-type", "multipart/form-data; boundary=x")], &format!("{fields}--x--\r\n"))
    }

    #[tokio::test]
    async fn fields_of_a_form_have_labels() {
        let labels = async |fields: &[(&str, &str)]| {
            let read = read::<ModelManifest>(form(fields), u64::MAX).await;
            read.map(|(manifest, ..)| serde_json::to_value(manifest.labels).unwrap())
        };
        let lines = "cat\r\ndog\n\n";
        for fields in [
            &[("labels", lines)][..],
            &[("manifest", "{\"slots\":2}"), ("labels", lines)],
            &[("labels", lines), ("manifest", "{\"slots\":2}")],
        ] {
            assert_eq!(labels(fields).await.unwrap(), serde_json::json!(["cat", "dog"]), "{fields:?}");
        }
        let two = labels(&[("labels.a.b", lines), ("labels.c", "x")]).await.unwrap();
        assert_eq!(two, serde_json::json!({"a.b": ["cat", "dog"], "c": ["x"]}));

        let half = "a".repeat(LABELS_BYTES_MAX / 2);
        for (fields, text) in [
            (&[("labels", "a"), ("labels", "b")][..], "\"labels\" gives labels again"),
            (&[("labels", "a"), ("labels.y", "b")], "\"labels.y\" gives labels again"),
            (&[("labels.y", "a"), ("labels.y", "b")], "\"labels.y\" gives labels again"),
            (
                &[("labels.y", &half), ("labels.z", &half), ("labels", "b")],
                "\"labels\" has more than 0 bytes",
            ),
        ] {
            let error = labels(fields).await.unwrap_err();
            assert!(error.code == ErrorCode::InvalidManifest && error.text.contains(text), "{}", error.text);
        }
        let latin = add_labels(&mut Map::new(), "labels", b"\xe9").unwrap_err();
        assert!(latin.text.contains("is not UTF-8"), "{}", latin.text);
    }

    #[tokio::test]
    async fn unknown_settings_and_late_form_fields_are_errors() {
        for uri in [
            "/f?modles=a",
            "/f?limits.memory=1",
            "/f?models=../x",
            "/f?limits.deadline_ms=soon",
            "/f?manifest=[]",
            &format!("/f?{}=1", ["a"; 30_000].join(".")),
        ] {
            let code = read_all(put(uri, &[], "")).await.map_err(|error| error.code).err();
            assert_eq!(code, Some(ErrorCode::InvalidManifest), "{uri}");
        }
        let late = "--x\r\ncontent-disposition: form-data; name=component\r\n\r\nwasm\r\n\
            --x\r\ncontent-disposition: form-data; name=manifest\r\n\r\n{}\r\n--x--\r\n";
        let headers = [("content-type", "multipart/form-data; boundary=x")];
        let error = read_all(put("/f", &headers, late)).await.unwrap_err();
        assert!(error.text.contains("put the other fields before it"), "{}", error.text);
    }
}
