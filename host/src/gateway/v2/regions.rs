//! Named objects in the place of data: inputs that are looked up, and outputs that are kept. The protocol calls them regions of shared memory,
//! so that its clients can name them.

use super::super::error::ApiError;
use super::super::functions::parse_name;
use super::read::{Asked, Unresolved};
use crate::node::NodeState;
use weir_inference::Tensor;
use weir_protocol::{Output, Region};
use weir_types::{ElementType, ErrorCode, Shape, TenantId};

/// An input, as a request gives it.
pub(in super::super) enum Input {
    /// With its data.
    Here(Tensor),
    /// With the name of what has it.
    Kept { datatype: ElementType, shape: Shape, region: Region },
}

impl Unresolved {
    /// Have the objects of `tenant` that it names.
    pub(super) async fn resolve(self, node: &NodeState, tenant: &TenantId) -> Result<Asked, ApiError> {
        let Self { asked, inputs } = self;
        let mut tensors = Vec::with_capacity(inputs.len());
        for (name, input) in inputs {
            let tensor = match input {
                Input::Here(tensor) => tensor,
                Input::Kept { datatype, shape, region } => {
                    let found = part(node, tenant, datatype, shape, &region).await;
                    found.map_err(|error| within("input", &name, error))?
                }
            };
            tensors.push((name, tensor));
        }
        Ok(Asked { inputs: tensors, ..asked })
    }
}

/// What a region is of an object: its bytes count, whatever tensor it was put as.
async fn part(
    node: &NodeState,
    tenant: &TenantId,
    datatype: ElementType,
    shape: Shape,
    Region { name, offset, bytes }: &Region,
) -> Result<Tensor, ApiError> {
    let (object, tensor) = node.objects.get(tenant, &parse_name(name)?).await?;
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidRequest, text);
    let end = bytes.map_or(Some(object.bytes), |bytes| offset.checked_add(bytes));
    let range = end.filter(|end| offset <= end && *end <= object.bytes).ok_or_else(|| {
        let of = bytes.map_or("the rest".to_owned(), |bytes| format!("{bytes} bytes"));
        invalid(format!("object {name} has {} bytes, and {of} from {offset} on are asked for", object.bytes))
    });
    // Within the tensor, whose length is a size in memory.
    let data = tensor.data().slice(*offset as usize..range? as usize);
    Tensor::new(datatype, shape, data).map_err(|error| invalid(error.to_string()))
}

/// Keep those of `outputs` as objects of `tenant` that are `wanted` so.
pub(super) async fn keep(
    node: &NodeState,
    tenant: &TenantId,
    outputs: &[(String, Tensor)],
    wanted: Option<&[Output]>,
) -> Result<(), ApiError> {
    for output in wanted.into_iter().flatten() {
        let Some(Region { name, bytes, .. }) = &output.region else { continue };
        let Some((_, tensor)) = outputs.iter().find(|(given, _)| *given == output.name) else { continue };
        let put = async {
            let (len, name) = (tensor.data().len() as u64, parse_name(name)?);
            if let Some(bytes) = bytes.filter(|bytes| *bytes < len) {
                let text = format!("it has {len} bytes, and shared_memory_byte_size is {bytes}");
                return Err(ApiError::new(ErrorCode::InvalidRequest, text));
            }
            Ok(node.objects.put(tenant, &name, tensor, None).await?)
        };
        put.await.map_err(|error| within("output", &output.name, error))?;
    }
    Ok(())
}

fn within(what: &str, name: &str, error: ApiError) -> ApiError {
    ApiError { text: format!("{what} {name:?}: {}", error.text), ..error }
}
