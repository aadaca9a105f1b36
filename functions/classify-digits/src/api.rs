//! HTTP API of the function: requests in, replies out. The model is a closure, so that tests need
//! no node.

use crate::picture::{Picture, PictureError};
use crate::prepare::{Input, prepare};
use serde::{Deserialize, Serialize};

/// Response to `GET`.
const USAGE: &str = "\
classify-digits reads one handwritten digit.

  curl --data-binary @3.png URL                                 a PNG of any size and colour
  curl -d '{\"pixels\": [[0, 9, 3, ...], ...]}' URL               rows of grey, of any scale and size

Dark on light and light on dark are both fine. The answer is JSON:

  {\"digit\": 3, \"confidence\": 0.99, \"probabilities\": [ten numbers, for 0 to 9]}
";

const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// A rejected request. The text is for the client.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The path does not exist.
    #[error("there is nothing at this path; send the picture to /")]
    NotFound,
    /// The method is neither GET nor POST nor PUT.
    #[error("use POST with a picture, or GET for help")]
    Method,
    /// The body is neither a PNG nor a JSON object.
    #[error("the body is neither a PNG nor a JSON object")]
    Unsupported,
    /// The body is empty.
    #[error("the body is empty: send a PNG, or JSON like {{\"pixels\": [[0, 1], [1, 0]]}}")]
    Empty,
    /// The JSON does not match the schema.
    #[error("the JSON cannot be used: {0}")]
    Json(#[from] serde_json::Error),
    /// The picture cannot be read.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// The picture is blank.
    #[error("the picture is blank: there is no digit on it")]
    Blank,
    /// The body could not be read.
    #[error(transparent)]
    Body(#[from] weir::Error),
    /// The model could not be run.
    #[error("the model `digits` cannot be run: {0}")]
    Model(weir::Error),
}

impl ApiError {
    /// HTTP status of the error.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::Method => 405,
            Self::Unsupported => 415,
            Self::Picture(PictureError::TooLarge { .. }) => 413,
            Self::Empty | Self::Json(_) | Self::Picture(_) => 400,
            Self::Blank => 422,
            Self::Body(error) => error.status(),
            // The function chooses the model's input, so a rejected input is not the client's
            // fault.
            Self::Model(error) => error.status().max(500),
        }
    }
}

/// Successful reply.
#[derive(Debug)]
pub enum Reply {
    /// Plain text.
    Usage(&'static str),
    /// JSON.
    Classification(Classification),
}

/// The recognised digit.
#[derive(Debug, Serialize)]
pub struct Classification {
    /// The most likely digit.
    pub digit: usize,
    /// Its probability.
    pub confidence: f32,
    /// The probability of each digit from 0 to 9.
    pub probabilities: [f32; 10],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pixels {
    pixels: Vec<Vec<f32>>,
}

/// Answers a request; `model` maps a prepared picture to the ten probabilities.
pub fn answer(
    method: &str,
    path: &str,
    body: &[u8],
    model: impl FnOnce(&Input) -> weir::Result<[f32; 10]>,
) -> Result<Reply, ApiError> {
    if !matches!(path, "" | "/" | "/classify") {
        return Err(ApiError::NotFound);
    }
    match method {
        "GET" | "HEAD" => Ok(Reply::Usage(USAGE)),
        "POST" | "PUT" => {
            let input = prepare(&picture(body)?).ok_or(ApiError::Blank)?;
            let probabilities = model(&input).map_err(ApiError::Model)?;
            let best = (0..10).zip(probabilities).max_by(|a, b| a.1.total_cmp(&b.1));
            let (digit, confidence) = best.unwrap_or_default();
            let probabilities = probabilities.map(rounded);
            Ok(Reply::Classification(Classification {
                digit,
                confidence: rounded(confidence),
                probabilities,
            }))
        }
        _ => Err(ApiError::Method),
    }
}

/// Rounds to six decimals: further digits are noise, and hard to read.
fn rounded(probability: f32) -> f32 {
    (probability * 1e6).round() / 1e6
}

/// Detects the type of the body from its content, since clients often send a wrong `content-type`.
fn picture(body: &[u8]) -> Result<Picture, ApiError> {
    if body.starts_with(&PNG_SIGNATURE) {
        return Ok(Picture::from_png(body)?);
    }
    match body.trim_ascii_start().first() {
        None => Err(ApiError::Empty),
        Some(b'{') => Ok(Picture::from_rows(&serde_json::from_slice::<Pixels>(body)?.pixels)?),
        Some(_) => Err(ApiError::Unsupported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &str, path: &str, body: &[u8]) -> u16 {
        answer(method, path, body, |_| Ok([0.1; 10])).map_or_else(|error| error.status(), |_| 200)
    }

    #[test]
    fn bad_requests_have_distinct_errors() {
        assert_eq!(status("GET", "/", b""), 200);
        assert_eq!(status("GET", "/nowhere", b""), 404);
        assert_eq!(status("DELETE", "/", b""), 405);
        assert_eq!(status("POST", "/", b""), 400);
        assert_eq!(status("POST", "/", b" \n"), 400);
        assert_eq!(status("POST", "/", b"GIF89a"), 415);
        assert_eq!(status("POST", "/", b"\x89PNG\r\n\x1a\n and no more"), 400);
        assert_eq!(status("POST", "/", b"{\"pixels\": 3}"), 400);
        assert_eq!(status("POST", "/", b"{\"pixels\": [[0, 1]], \"more\": 1}"), 400);
        assert_eq!(status("POST", "/", b"{\"pixels\": [[0, 1e999]]}"), 400);
        assert_eq!(status("POST", "/", b"{\"pixels\": [[0, 1], [1]]}"), 400);
        assert_eq!(status("POST", "/", b"{\"pixels\": [[3, 3]]}"), 422);
        assert_eq!(status("POST", "/classify", b"{\"pixels\": [[0, 1]]}"), 200);
    }

    #[test]
    fn model_failure_is_a_server_error() {
        let status = |error: weir::Error| {
            answer("POST", "/", b"{\"pixels\": [[0, 1]]}", |_| Err(error)).unwrap_err().status()
        };
        assert_eq!(status(weir::Error::NotFound("digits".into())), 500);
        assert_eq!(status(weir::Error::InvalidArgument("its shape".into())), 500);
        assert_eq!(status(weir::Error::Unavailable("later".into())), 503);
    }

    #[test]
    fn most_likely_digit_is_returned() {
        let mut probabilities = [0.05; 10];
        probabilities[7] = 0.55;
        probabilities[8] = 1.5e-17;
        let body = b"{\"pixels\": [[0, 255], [255, 0]]}";
        let Ok(Reply::Classification(found)) = answer("POST", "/", body, |_| Ok(probabilities)) else {
            panic!("no classification")
        };
        assert_eq!((found.digit, found.confidence), (7, 0.55));
        assert!(
            serde_json::to_string(&found)
                .unwrap()
                .starts_with("{\"digit\":7,\"confidence\":0.55,\"probabilities\":[0.05,")
        );
    }

    /// `model/train.py` wrote the samples, and the input that its own preparation derives from
    /// them.
    #[test]
    fn samples_are_prepared_as_in_training() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/samples");
        let expected = std::fs::read(format!("{folder}/expected.json")).unwrap();
        let expected: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&expected).unwrap();
        assert_eq!(expected.len(), 10);
        for (file, entry) in expected {
            let wanted: Vec<Vec<f32>> = serde_json::from_value(entry["input"].clone()).unwrap();
            let body = std::fs::read(format!("{folder}/{file}")).unwrap();
            let compare = |input: &Input| {
                let worst = input.iter().zip(wanted.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-5, "{file} differs by {worst}");
                Ok([0.1; 10])
            };
            answer("POST", "/", &body, compare).unwrap();
        }
    }
}
