//! Computes embeddings of sentences, and the similarity of two sentences. The function tokenises
//! the sentences; the model `minilm` runs on the node.
//!
//! Building the tokenizer from its vocabulary takes longer than the rest of a request, so the
//! component is built as a snapshot (`weir build --snapshot`): its export `wizer-initialize` builds
//! the tokenizer once, and every instance starts with it in memory.

mod api;
mod openai;
mod tokens;

use api::{ApiError, Reply};
use tokens::Batch;
use weir::{Model, Request, Response, Result, Tensor};

fn handle(request: Request) -> Result<Response> {
    if request.path() == openai::PATH {
        return openai_handle(&request);
    }
    let content_type = request.header("content-type");
    let answer = request.body().map_err(ApiError::from).and_then(|body| {
        api::answer(request.method(), request.path(), content_type.as_deref(), &body, embeddings)
    });
    match answer {
        Ok(Reply::Usage(text)) => Ok(Response::text(text)),
        Ok(Reply::Answer(answer)) => Response::json(&answer),
        Err(error) => {
            let body = serde_json::json!({"error": error.to_string()});
            Ok(Response::json(&body)?.with_status(error.status()))
        }
    }
}

fn openai_handle(request: &Request) -> Result<Response> {
    let answer = request.body().map_err(ApiError::from);
    let answer = answer.and_then(|body| openai::answer(request.method(), &body, embeddings));
    match answer {
        Ok(answer) => Response::json(&answer),
        Err(error) => Ok(Response::json(&openai::error(&error))?.with_status(error.status())),
    }
}

/// The embeddings of a batch, concatenated.
fn embeddings(batch: &Batch) -> Result<Vec<f32>> {
    let shape = [batch.lengths.len(), batch.longest];
    let ids = Tensor::from_slice(&batch.ids, shape)?;
    let mask = Tensor::from_slice(&batch.mask, shape)?;
    let outputs = Model::open("minilm")?.infer([("input_ids", &ids), ("attention_mask", &mask)])?;
    outputs.get("embedding")?.to_vec()
}

weir::http_function!(handle);
weir::snapshot!(tokens::prepare);
