//! HTTP API of the function: requests in, replies out. The model is a closure, so that tests need
//! no node.

use crate::tokens::{Batch, TokenError};
use serde::{Deserialize, Serialize};

/// Model name in the responses.
pub const MODEL: &str = "all-MiniLM-L6-v2";
/// Dimensions of an embedding.
pub const WIDTH: usize = 384;
/// Largest number of sentences per request.
pub const SENTENCES_MAX: usize = 64;
/// Largest size of a sentence in bytes. The model reads about a thousand bytes and would truncate
/// the rest.
pub const SENTENCE_BYTES_MAX: usize = 16 << 10;

/// Response to `GET`.
const USAGE: &str = "\
embed-text turns sentences into 384 numbers each, close to one another for close meanings.

  curl -d 'A sentence.' URL
  curl -d '{\"sentences\": [\"One.\", \"Another.\"]}' URL
  curl -d '{\"sentences\": [\"One.\", \"Another.\"]}' URL/similarity
  curl -d '{\"input\": [\"One.\", \"Another.\"]}' URL/v1/embeddings        in OpenAI's shape

The answer is JSON: {\"model\": ..., \"embeddings\": [[...], ...], \"tokens\": [...]}, or {\"model\": ..., \"cosine\": 0.71, \"tokens\": [...]} from /similarity.
Embeddings have length one. At most 64 sentences of 16 KiB; what is past 256 tokens of one is cut off, and `truncated` says where.
";

/// A rejected request. The text is for the client.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The path does not exist.
    #[error("there is nothing at this path; there are / and /similarity")]
    NotFound,
    /// The method is not supported.
    #[error("use POST with text or JSON, or GET for help")]
    Method,
    /// The body is empty.
    #[error("the body is empty: send text, or JSON like {{\"sentences\": [\"One.\", \"Another.\"]}}")]
    Empty,
    /// The text is not UTF-8.
    #[error("the body is not UTF-8 text")]
    NotText,
    /// The JSON does not match the schema.
    #[error("the JSON cannot be used: {0}")]
    Json(#[from] serde_json::Error),
    /// The JSON has both `text` and `sentences`, or neither.
    #[error("the JSON needs either `text` or `sentences`")]
    Which,
    /// A sentence is empty.
    #[error("sentence {0} is empty (the first is 0)")]
    EmptySentence(usize),
    /// Too many sentences.
    #[error("{0} sentences; at most {SENTENCES_MAX} are taken at once")]
    TooMany(usize),
    /// Too many texts in an OpenAI-style request.
    #[error("{0} texts; at most {max} are taken at once", max = crate::openai::TEXTS_MAX)]
    TooManyTexts(usize),
    /// The requested dimension of the embeddings is unsupported.
    #[error("embeddings have {WIDTH} dimensions here, not {0}")]
    Dimensions(usize),
    /// A sentence is too long.
    #[error("sentence {0} has {1} bytes; at most {SENTENCE_BYTES_MAX} are taken (the first is 0)")]
    TooLong(usize, usize),
    /// A similarity needs exactly two sentences.
    #[error("/similarity compares two sentences, not {0}")]
    NotTwo(usize),
    /// The tokenizer failed.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The body could not be read.
    #[error(transparent)]
    Body(#[from] weir::Error),
    /// The model could not be run.
    #[error("the model `minilm` cannot be run: {0}")]
    Model(weir::Error),
}

impl ApiError {
    /// HTTP status of the error.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::Method => 405,
            Self::TooMany(_) | Self::TooManyTexts(_) | Self::TooLong(..) => 413,
            Self::Token(_) => 500,
            Self::Body(error) => error.status(),
            // The function chooses the model's input, so a rejected input is not the client's
            // fault.
            Self::Model(error) => error.status().max(500),
            _ => 400,
        }
    }
}

/// Successful reply.
#[derive(Debug)]
pub enum Reply {
    /// Plain text.
    Usage(&'static str),
    /// JSON.
    Answer(Answer),
}

/// Result of either operation, with information about the input.
#[derive(Debug, Serialize)]
pub struct Answer {
    model: &'static str,
    #[serde(flatten)]
    result: Outcome,
    tokens: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    truncated: Vec<usize>,
}

/// Result of the operation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Embeddings(Vec<Vec<f32>>),
    Cosine(f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    text: Option<String>,
    sentences: Option<Vec<String>>,
}

/// Answers a request; `model` maps a batch to its embeddings, concatenated.
pub fn answer(
    method: &str,
    path: &str,
    content_type: Option<&str>,
    body: &[u8],
    model: impl FnOnce(&Batch) -> weir::Result<Vec<f32>>,
) -> Result<Reply, ApiError> {
    let similarity = match path {
        "" | "/" | "/embed" => false,
        "/similarity" => true,
        _ => return Err(ApiError::NotFound),
    };
    match method {
        "GET" | "HEAD" => return Ok(Reply::Usage(USAGE)),
        "POST" | "PUT" => {}
        _ => return Err(ApiError::Method),
    }
    let sentences = sentences(content_type, body)?;
    if similarity && sentences.len() != 2 {
        return Err(ApiError::NotTwo(sentences.len()));
    }
    let batch = Batch::from_sentences(&sentences)?;
    let numbers = model(&batch).map_err(ApiError::Model)?;
    if numbers.len() != sentences.len() * WIDTH {
        let why = format!("it gave {} numbers for {} sentences", numbers.len(), sentences.len());
        return Err(ApiError::Model(weir::Error::Internal(why)));
    }
    let result = match numbers.split_at(WIDTH) {
        (first, second) if similarity => Outcome::Cosine(cosine(first, second)),
        _ => Outcome::Embeddings(numbers.chunks_exact(WIDTH).map(<[f32]>::to_vec).collect()),
    };
    Ok(Reply::Answer(Answer { model: MODEL, result, tokens: batch.lengths, truncated: batch.cut }))
}

fn sentences(content_type: Option<&str>, body: &[u8]) -> Result<Vec<String>, ApiError> {
    let body = str::from_utf8(body).map_err(|_| ApiError::NotText)?.trim();
    if body.is_empty() {
        return Err(ApiError::Empty);
    }
    let is = |name: &str| content_type.is_some_and(|found| found.starts_with(name));
    // Without an explicit content type, an object is JSON: curl sends
    // `application/x-www-form-urlencoded` by default.
    let sentences = if is("application/json") || (!is("text/") && body.starts_with('{')) {
        match serde_json::from_str(body)? {
            Body { text: Some(text), sentences: None } => vec![text],
            Body { text: None, sentences: Some(sentences) } => sentences,
            Body { .. } => return Err(ApiError::Which),
        }
    } else {
        vec![body.to_owned()]
    };
    match sentences.len() {
        0 => return Err(ApiError::Empty),
        many if many > SENTENCES_MAX => return Err(ApiError::TooMany(many)),
        _ => {}
    }
    for (index, sentence) in sentences.iter().enumerate() {
        if sentence.trim().is_empty() {
            return Err(ApiError::EmptySentence(index));
        }
        if sentence.len() > SENTENCE_BYTES_MAX {
            return Err(ApiError::TooLong(index, sentence.len()));
        }
    }
    Ok(sentences)
}

/// Cosine similarity. The embeddings have length one, so it is their dot product; clamped, since
/// rounding may exceed 1.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    product.clamp(-1.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that embeds each sentence as the ID of its first token, followed by zeros.
    fn first_token(batch: &Batch) -> weir::Result<Vec<f32>> {
        let rows = batch.ids.chunks(batch.longest).map(|row| {
            let mut embedding = vec![0.0; WIDTH];
            embedding[usize::try_from(row[1]).unwrap() % WIDTH] = 1.0;
            embedding
        });
        Ok(rows.flatten().collect())
    }

    fn post(path: &str, content_type: Option<&str>, body: &str) -> Result<serde_json::Value, u16> {
        match answer("POST", path, content_type, body.as_bytes(), first_token) {
            Ok(Reply::Answer(answer)) => Ok(serde_json::to_value(answer).unwrap()),
            Ok(Reply::Usage(_)) => panic!("help is for GET"),
            Err(error) => Err(error.status()),
        }
    }

    #[test]
    fn text_and_json_bodies_are_accepted() {
        for (content_type, body) in [
            (None, "hi"),
            (Some("text/plain; charset=utf-8"), " hi\n"),
            (Some("application/x-www-form-urlencoded"), "{\"text\": \"hi\"}"),
            (Some("application/json"), "{\"sentences\": [\"hi\"]}"),
        ] {
            let answer = post("/", content_type, body).unwrap();
            assert_eq!(answer["model"], "all-MiniLM-L6-v2");
            assert_eq!(answer["tokens"], serde_json::json!([3]), "{body}");
            assert_eq!(answer["embeddings"][0].as_array().unwrap().len(), WIDTH);
            assert_eq!(answer["embeddings"][0][7632 % WIDTH], 1.0);
            assert_eq!(answer.get("truncated"), None);
        }
        let braces = post("/", Some("text/plain"), "{not json}").unwrap();
        assert_eq!(braces["tokens"], serde_json::json!([7]));
    }

    #[test]
    fn long_sentence_is_truncated_and_reported() {
        let body = serde_json::json!({"sentences": ["hi", "word ".repeat(400)]}).to_string();
        let answer = post("/", None, &body).unwrap();
        assert_eq!(answer["tokens"], serde_json::json!([3, 256]));
        assert_eq!(answer["truncated"], serde_json::json!([1]));
    }

    #[test]
    fn similarity_is_the_cosine_of_two_embeddings() {
        let of = |body| post("/similarity", None, body);
        assert_eq!(of("{\"sentences\": [\"hi\", \"Hi!\"]}").unwrap()["cosine"], 1.0);
        assert_eq!(of("{\"sentences\": [\"hi\", \"bye\"]}").unwrap()["cosine"], 0.0);
        assert_eq!(of("{\"sentences\": [\"hi\"]}"), Err(400));
        assert_eq!(of("{\"sentences\": [\"a\", \"b\", \"c\"]}"), Err(400));
        assert_eq!(of("hi"), Err(400));
    }

    #[test]
    fn bad_requests_have_distinct_errors() {
        let many = serde_json::json!({"sentences": vec!["x"; SENTENCES_MAX + 1]}).to_string();
        let long = "x".repeat(SENTENCE_BYTES_MAX + 1);
        for (body, status) in [
            ("", 400),
            ("  ", 400),
            ("{", 400),
            ("{}", 400),
            ("{\"text\": \"a\", \"sentences\": []}", 400),
            ("{\"sentences\": []}", 400),
            ("{\"sentences\": [\"a\", \" \"]}", 400),
            ("{\"sentences\": [1]}", 400),
            ("{\"txt\": \"a\"}", 400),
            (&many, 413),
            (&long, 413),
        ] {
            assert_eq!(post("/", None, body), Err(status), "{body}");
        }
        assert_eq!(post("/elsewhere", None, "hi"), Err(404));
        let status =
            |method, body: &[u8]| answer(method, "/", None, body, first_token).map_err(|e| e.status()).err();
        assert_eq!(status("DELETE", b""), Some(405));
        assert_eq!(status("POST", b"\xff\xfe"), Some(400));
        assert_eq!(status("GET", b""), None);
    }

    #[test]
    fn model_failure_or_short_output_is_a_server_error() {
        let status = |numbers: weir::Result<Vec<f32>>| {
            answer("POST", "/", None, b"hi", |_| numbers).unwrap_err().status()
        };
        assert_eq!(status(Ok(vec![0.0; 3])), 500);
        assert_eq!(status(Err(weir::Error::InvalidArgument("its shape".into()))), 500);
        assert_eq!(status(Err(weir::Error::Unavailable("later".into()))), 503);
    }
}
