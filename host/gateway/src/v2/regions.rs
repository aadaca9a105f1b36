//! Named objects in the place of data: inputs are loaded from objects, and outputs are stored as
//! objects. The protocol calls them shared memory regions, so that its clients can name them.
//! Between nodes, workflow intermediates are named the same way.

use super::super::error::ApiError;
use super::super::versions::parse_name;
use super::read::{InferenceContent, Unresolved};
use crate::NodeState;
use std::time::Instant;
use weir_dispatch::intermediates::{LEFT_HERE, Stands, region_of};
use weir_inference::Tensor;
use weir_protocol::{Region, RequestedOutput};
use weir_types::{ElementType, ErrorCode, Shape, TenantId};

/// An input of a request.
pub(crate) enum RequestInput {
    /// The data itself.
    Here(Tensor),
    /// The name of an object or intermediate with the data.
    Kept { datatype: ElementType, shape: Shape, region: Region },
}

/// Terms of a call that another node forwarded. Such a call may name workflow intermediates, and
/// its outputs may be left as intermediates until this time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) until: Instant,
}

impl Unresolved {
    /// Loads the objects of `tenant` that the inputs name, and the intermediates if the request may
    /// name any.
    pub(super) async fn resolve(
        self,
        node: &NodeState,
        tenant: &TenantId,
        may_name_left: bool,
    ) -> Result<InferenceContent, ApiError> {
        let Self { asked, inputs } = self;
        let resolving = inputs.into_iter().map(async |(name, input)| {
            let tensor = match input {
                RequestInput::Here(tensor) => tensor,
                RequestInput::Kept { datatype, shape, region } => {
                    let found = match region_of(&region.name).filter(|_| may_name_left) {
                        Some(stands) => left(node, tenant, datatype, shape, (stands, region.bytes)).await,
                        None => part(node, tenant, datatype, shape, &region).await,
                    };
                    found.map_err(|error| within("input", &name, error))?
                }
            };
            Ok::<_, ApiError>((name, tensor))
        });
        let inputs = futures::future::try_join_all(resolving).await?;
        Ok(InferenceContent { inputs, ..asked })
    }
}

/// Returns the part of an object that a region names. Only the object's bytes count, and not the
/// type that it was stored with.
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
    // The range is within the tensor, whose length is a size in memory.
    let data = tensor.data().slice(*offset as usize..range? as usize);
    Tensor::new(datatype, shape, data).map_err(|error| invalid(error.to_string()))
}

/// Takes an intermediate that a step has left.
async fn left(
    node: &NodeState,
    tenant: &TenantId,
    datatype: ElementType,
    shape: Shape,
    (stands, bytes): (Stands, Option<u64>),
) -> Result<Tensor, ApiError> {
    let (Stands::For(index), Some(bytes)) = (stands, bytes) else {
        return Err(ApiError::new(ErrorCode::InvalidRequest, "it does not name an existing intermediate"));
    };
    let data = node.dispatch.intermediates.take(tenant, index, bytes).await?;
    Tensor::new(datatype, shape, data)
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))
}

/// Leaves outputs on this node for other steps if they are `wanted` as intermediates, if that is
/// worthwhile and if there is room. All other outputs return with the response.
pub(super) fn leave(
    node: &NodeState,
    tenant: &TenantId,
    outputs: &[(String, Tensor)],
    wanted: Option<&mut [RequestedOutput]>,
    Left { until }: Left,
) {
    for output in wanted.into_iter().flatten() {
        let Some(region) = output.region.as_mut().filter(|region| region.name == LEFT_HERE) else { continue };
        let tensor = outputs.iter().find(|(given, _)| *given == output.name).map(|(_, tensor)| tensor);
        match tensor.and_then(|tensor| node.dispatch.intermediates.keep(tenant, tensor, until)) {
            Some(index) => region.name = index.region(),
            None => output.region = None,
        }
    }
}

/// Stores outputs as objects of `tenant` if they are `wanted` as objects.
pub(super) async fn keep(
    node: &NodeState,
    tenant: &TenantId,
    outputs: &[(String, Tensor)],
    wanted: Option<&[RequestedOutput]>,
    may_name_left: bool,
) -> Result<(), ApiError> {
    for output in wanted.into_iter().flatten() {
        let Some(Region { name, bytes, .. }) = &output.region else { continue };
        if region_of(name).is_some() && may_name_left {
            continue;
        }
        let Some((_, tensor)) = outputs.iter().find(|(given, _)| *given == output.name) else { continue };
        let put = async {
            let len = tensor.data().len() as u64;
            let name = parse_name(name)?;
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
