//! OpenAI-compatible API, which many programs support: `POST /v1/embeddings`.
//!
//! The node routes a request for `/v1/embeddings` to the function named as its model.

use crate::api::{ApiError, SENTENCE_BYTES_MAX, SENTENCES_MAX, WIDTH};
use crate::tokens::Batch;
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Path of the endpoint.
pub const PATH: &str = "/v1/embeddings";
/// Largest number of texts per request. The model runs them in batches.
pub const TEXTS_MAX: usize = 2_048;

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    model: String,
    input: Input,
    #[serde(default)]
    encoding_format: Format,
    dimensions: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`input` must be a string or a list of strings; token ids are not taken")]
enum Input {
    One(String),
    Many(Vec<String>),
}

/// Encoding of the embeddings: numbers, or base64 of little-endian floats.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

/// Successful response.
#[derive(Debug, Serialize)]
pub struct Answer {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Numbers {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Answers a request; `model` maps a batch to its embeddings, concatenated.
pub fn answer(
    method: &str,
    body: &[u8],
    mut model: impl FnMut(&Batch) -> weir::Result<Vec<f32>>,
) -> Result<Answer, ApiError> {
    if method != "POST" {
        return Err(ApiError::Method);
    }
    let asked: Asked = serde_json::from_slice(body)?;
    if let Some(width) = asked.dimensions.filter(|width| *width != WIDTH) {
        return Err(ApiError::Dimensions(width));
    }
    let texts = match asked.input {
        Input::One(text) => vec![text],
        Input::Many(texts) => texts,
    };
    check(&texts)?;
    let mut data = Vec::with_capacity(texts.len());
    let mut tokens = 0;
    for texts in texts.chunks(SENTENCES_MAX) {
        let batch = Batch::from_sentences(texts)?;
        let numbers = model(&batch).map_err(ApiError::Model)?;
        if numbers.len() != texts.len() * WIDTH {
            let why = format!("it gave {} numbers for {} texts", numbers.len(), texts.len());
            return Err(ApiError::Model(weir::Error::Internal(why)));
        }
        tokens += batch.lengths.iter().sum::<usize>();
        for numbers in numbers.chunks_exact(WIDTH) {
            let embedding = written(numbers, asked.encoding_format);
            data.push(Embedding { object: "embedding", index: data.len(), embedding });
        }
    }
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(Answer { object: "list", data, model: asked.model, usage })
}

/// An error in OpenAI's format.
pub fn error(error: &ApiError) -> Value {
    let kind = if error.status() < 500 { "invalid_request_error" } else { "server_error" };
    json!({"error": {"message": error.to_string(), "type": kind, "param": null, "code": null}})
}

fn check(texts: &[String]) -> Result<(), ApiError> {
    match texts.len() {
        0 => return Err(ApiError::Empty),
        many if many > TEXTS_MAX => return Err(ApiError::TooManyTexts(many)),
        _ => {}
    }
    for (index, text) in texts.iter().enumerate() {
        if text.is_empty() {
            return Err(ApiError::EmptySentence(index));
        }
        if text.len() > SENTENCE_BYTES_MAX {
            return Err(ApiError::TooLong(index, text.len()));
        }
    }
    Ok(())
}

fn written(numbers: &[f32], format: Format) -> Numbers {
    match format {
        Format::Float => Numbers::Floats(numbers.to_vec()),
        Format::Base64 => {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            Numbers::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that embeds every text as the length of its batch, followed by zeros.
    fn batch_len(batch: &Batch) -> weir::Result<Vec<f32>> {
        let mut row = vec![0.0; WIDTH];
        row[0] = batch.lengths.len() as f32;
        Ok(row.repeat(batch.lengths.len()))
    }

    fn post(body: &Value) -> Result<Value, (u16, String)> {
        answer("POST", body.to_string().as_bytes(), batch_len)
            .map(|answer| serde_json::to_value(answer).unwrap())
            .map_err(|error| (error.status(), error.to_string()))
    }

    #[test]
    fn embeddings_keep_the_order_of_texts() {
        let one = post(&json!({"model": "mine", "input": "hi", "user": "passed over"})).unwrap();
        assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!("mine")));
        assert_eq!(one["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
        assert_eq!(one["data"][0]["embedding"].as_array().unwrap().len(), WIDTH);
        let many = post(&json!({"input": vec!["hi"; SENTENCES_MAX + 1]})).unwrap();
        let data = many["data"].as_array().unwrap();
        assert_eq!(data.len(), SENTENCES_MAX + 1);
        assert!(data.iter().enumerate().all(|(index, item)| item["index"] == index));
        assert_eq!(
            (&data[0]["embedding"][0], &data[SENTENCES_MAX]["embedding"][0]),
            (&json!(64.0), &json!(1.0))
        );
    }

    #[test]
    fn base64_encodes_little_endian_floats() {
        let answer = post(&json!({"input": ["hi"], "encoding_format": "base64"})).unwrap();
        let text = answer["data"][0]["embedding"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        assert_eq!((bytes.len(), &bytes[..4]), (WIDTH * 4, &1.0_f32.to_le_bytes()[..]));
    }

    #[test]
    fn bad_requests_have_distinct_errors() {
        for (body, status) in [
            (json!({}), 400),
            (json!({"input": []}), 400),
            (json!({"input": [""]}), 400),
            (json!({"input": [1, 2]}), 400),
            (json!({"input": "hi", "encoding_format": "hex"}), 400),
            (json!({"input": "hi", "dimensions": 100}), 400),
            (json!({"input": vec!["x"; TEXTS_MAX + 1]}), 413),
            (json!({"input": "x".repeat(SENTENCE_BYTES_MAX + 1)}), 413),
        ] {
            assert_eq!(post(&body).map_err(|(status, _)| status), Err(status), "{body:.100}");
        }
        assert!(post(&json!({"input": [1]})).unwrap_err().1.contains("token ids"));
        assert!(post(&json!({"input": "hi", "dimensions": WIDTH})).is_ok());
        let error = answer("GET", b"", batch_len).map_err(|error| self::error(&error)).unwrap_err();
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
}
