//! Response cache for inferences. Inferences are equal if they have the same inputs, in any form,
//! and request the same outputs.

use super::super::cached::wish;
use super::super::error::ApiError;
use crate::NodeState;
use bytes::Bytes;
use http::HeaderMap;
use std::sync::{Arc, OnceLock};
use weir_control::response_cache::{Keep, Scope, SharedResponse, Wish};
use weir_inference::Tensor;
use weir_types::{ContentHash, Hasher};

/// Cache scope of an inference, and the caller's requirements.
pub(super) struct Cached {
    pub(super) scope: Arc<Scope>,
    pub(super) wish: Wish,
}

impl Cached {
    /// Returns none if the model or function has no cache, or if the caller bypasses it.
    pub(super) fn for_request(
        node: &NodeState,
        answers: &OnceLock<Arc<Scope>>,
        ttl_ms: Option<u64>,
        headers: &HeaderMap,
    ) -> Option<Self> {
        let scope = node.response_cache.scope(answers, ttl_ms)?;
        Some(Self { scope, wish: wish(headers)? })
    }
}

/// Hashes the inputs and, if given, the requested outputs.
pub(super) async fn input(
    node: &NodeState,
    inputs: &[(String, Tensor)],
    wanted: Option<&[String]>,
) -> Result<ContentHash, ApiError> {
    let bytes = inputs.iter().map(|(_, tensor)| tensor.data().len()).sum();
    let inputs = inputs.to_vec();
    let wanted = wanted.map(<[String]>::to_vec);
    node.json(bytes, move || Ok(hash(inputs, wanted.as_deref()))).await
}

/// Hashes an inference. A length precedes each part, so that different inferences hash different
/// bytes. The order of the inputs does not matter; the order of the outputs does.
fn hash(mut inputs: Vec<(String, Tensor)>, wanted: Option<&[String]>) -> ContentHash {
    let mut hasher = Hasher::default();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    inputs.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, tensor) in &inputs {
        part(name.as_bytes());
        part(tensor.element_type().as_str().as_bytes());
        let dimensions = tensor.shape().dimensions().iter().flat_map(|size| size.to_le_bytes());
        part(&dimensions.collect::<Vec<_>>());
        part(tensor.data());
    }
    part(if wanted.is_some() { b"wanted" } else { b"all" });
    wanted.into_iter().flatten().for_each(|name| part(name.as_bytes()));
    hasher.finish()
}

/// Copies `outputs` for the cache: their present memory belongs to the arena, and may be larger
/// than the outputs. Returns none if the outputs are larger than `bytes_max`.
pub(super) fn keep(outputs: &[(String, Tensor)], bytes_max: u64) -> Option<Keep> {
    let bytes: usize = outputs.iter().map(|(_, tensor)| tensor.data().len()).sum();
    if bytes as u64 > bytes_max {
        return None;
    }
    let copy = |(name, tensor): &(String, Tensor)| {
        let data = Bytes::copy_from_slice(tensor.data());
        let tensor = Tensor::new(tensor.element_type(), tensor.shape().clone(), data.into()).ok()?;
        Some((name.clone(), tensor))
    };
    let tensors = outputs.iter().map(copy).collect::<Option<Arc<[_]>>>()?;
    Some(Keep { answer: SharedResponse::Tensors(tensors), ttl_max: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{ElementType, Shape};

    fn tensor(name: &str, datatype: ElementType, shape: &[u32], data: &'static [u8]) -> (String, Tensor) {
        let shape = Shape::new(shape).unwrap();
        (name.to_owned(), Tensor::new(datatype, shape, Bytes::from_static(data).into()).unwrap())
    }

    #[test]
    fn different_inferences_have_different_hashes() {
        use ElementType::{Int8, Uint8};
        let x = tensor("x", Uint8, &[2], b"ab");
        let y = tensor("y", Uint8, &[2], b"cd");
        let of = |inputs: &[&(String, Tensor)], wanted: Option<&[&str]>| {
            let wanted =
                wanted.map(|wanted| wanted.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            hash(inputs.iter().map(|input| (*input).clone()).collect(), wanted.as_deref())
        };
        assert_eq!(of(&[&x, &y], None), of(&[&y, &x], None));
        let all = [
            of(&[&x, &y], None),
            of(&[&x], None),
            of(&[], None),
            of(&[&x, &y], Some(&["o"])),
            of(&[&x, &y], Some(&["o", "p"])),
            of(&[&x, &y], Some(&["p", "o"])),
            of(&[&x, &y], Some(&["op"])),
            of(&[&tensor("x", Int8, &[2], b"ab"), &y], None),
            of(&[&tensor("x", Uint8, &[2, 1], b"ab"), &y], None),
            of(&[&tensor("x", Uint8, &[2], b"aB"), &y], None),
            of(&[&tensor("z", Uint8, &[2], b"ab"), &y], None),
        ];
        let different: std::collections::HashSet<_> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn cached_outputs_are_copies_within_the_limit() {
        let outputs = [tensor("y", ElementType::Uint8, &[4], b"abcd")];
        assert!(keep(&outputs, 3).is_none());
        let Some(Keep { answer: SharedResponse::Tensors(kept), .. }) = keep(&outputs, 4) else {
            panic!("it was not kept")
        };
        assert_eq!(kept[..], outputs[..]);
        assert_ne!(kept[0].1.data().as_ptr(), outputs[0].1.data().as_ptr());
    }
}
