//! Handles of tensors that steps pass on.

use super::{Index, Intermediates, release::ReleaseNotifier};
use std::sync::Arc;
use tokio::sync::OnceCell;
use weir_call::Fault;
use weir_inference::{DeviceTensor, InferenceError, Tensor, Value as Placed};
use weir_types::{ElementType, ErrorCode, NodeId, Shape, TenantId};
use weir_workflow::{TensorHandle, TensorView};

/// A tensor that steps pass on. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Handle {
    /// In this node's memory.
    Here(Tensor),
    /// In the memory of a device of this node that computed it.
    OnDevice(DeviceTensor),
    /// On the node that computed it.
    Left(Arc<Intermediate>),
}

/// A tensor that a step has left on the node where it ran. Dropping the last handle removes the
/// tensor there.
#[derive(Debug)]
pub struct Intermediate {
    pub index: Index,
    pub datatype: ElementType,
    pub shape: Shape,
    pub bytes: u64,
    pub(super) tenant: TenantId,
    pub(super) let_go: ReleaseNotifier,
    /// The tensor, once it was fetched to this node.
    taken: OnceCell<Tensor>,
}

impl Handle {
    /// The tensor, if it is in this node's memory.
    pub fn here(&self) -> Option<&Tensor> {
        match self {
            Self::Here(tensor) => Some(tensor),
            Self::OnDevice(_) | Self::Left(_) => None,
        }
    }

    /// The size of the tensor in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Here(tensor) => tensor.data().len() as u64,
            Self::OnDevice(tensor) => tensor.bytes(),
            Self::Left(left) => left.bytes,
        }
    }

    /// The node that has the tensor; `here` is this node.
    pub fn node(&self, here: NodeId) -> NodeId {
        match self {
            Self::Here(_) | Self::OnDevice(_) => here,
            Self::Left(left) => left.index.node,
        }
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Here(tensor) => tensor.shape(),
            Self::OnDevice(tensor) => tensor.shape(),
            Self::Left(left) => &left.shape,
        }
    }
}

/// Handles of the outputs that a run has left on its device.
pub fn stay(stayed: Vec<(String, DeviceTensor)>) -> impl Iterator<Item = (String, Handle)> {
    stayed.into_iter().map(|(name, tensor)| (name, Handle::OnDevice(tensor)))
}

impl TensorHandle for Handle {
    fn view(&self) -> TensorView<'_> {
        match self {
            Self::Here(tensor) => {
                TensorView { datatype: tensor.element_type(), shape: tensor.shape(), data: tensor.data() }
            }
            Self::OnDevice(tensor) => {
                TensorView { datatype: tensor.element_type(), shape: tensor.shape(), data: &[] }
            }
            Self::Left(left) => TensorView { datatype: left.datatype, shape: &left.shape, data: &[] },
        }
    }
}

impl Intermediates {
    /// A handle of a tensor that another node keeps for `tenant`.
    pub fn left(
        &self,
        index: Index,
        tenant: &TenantId,
        (datatype, shape, bytes): (ElementType, Shape, u64),
    ) -> Handle {
        let tenant = tenant.clone();
        let let_go = self.let_go.clone();
        let taken = OnceCell::new();
        Handle::Left(Arc::new(Intermediate { index, datatype, shape, bytes, tenant, let_go, taken }))
    }

    /// The tensors of `handles`, in this node's memory. Each is fetched at most once.
    pub async fn here(&self, handles: Vec<(String, Handle)>) -> Result<Vec<(String, Tensor)>, Fault> {
        let here = self.on_node(handles).await?.into_iter().map(async |(name, placed)| match placed {
            Placed::Host(tensor) => Ok((name, tensor)),
            Placed::Device(tensor) => Ok((name, from_device(tensor).await?)),
        });
        futures::future::try_join_all(here).await
    }

    /// Like [`here`](Self::here), except that tensors on devices of this node stay there.
    pub async fn on_node(&self, handles: Vec<(String, Handle)>) -> Result<Vec<(String, Placed)>, Fault> {
        let on_node = handles.into_iter().map(async |(name, handle)| {
            let placed = match handle {
                Handle::Here(tensor) => Placed::Host(tensor),
                Handle::OnDevice(tensor) => Placed::Device(tensor),
                Handle::Left(left) => {
                    Placed::Host(left.taken.get_or_try_init(|| self.fetch(&left)).await?.clone())
                }
            };
            Ok((name, placed))
        });
        futures::future::try_join_all(on_node).await
    }

    /// Converts handles for use by another node: tensors on devices are copied to this node's
    /// memory.
    pub async fn off_devices(&self, handles: Vec<(String, Handle)>) -> Result<Vec<(String, Handle)>, Fault> {
        let off = handles.into_iter().map(async |(name, handle)| match handle {
            Handle::OnDevice(tensor) => Ok((name, Handle::Here(from_device(tensor).await?))),
            Handle::Here(_) | Handle::Left(_) => Ok((name, handle)),
        });
        futures::future::try_join_all(off).await
    }

    async fn fetch(&self, left: &Intermediate) -> Result<Tensor, Fault> {
        let data = self.take(&left.tenant, left.index, left.bytes).await?;
        let tensor = Tensor::new(left.datatype, left.shape.clone(), data);
        tensor
            .map_err(|error| Fault::new(ErrorCode::Internal, format!("intermediate {}: {error}", left.index)))
    }
}

/// Copies a tensor to the host, on a thread that may block.
async fn from_device(tensor: DeviceTensor) -> Result<Tensor, Fault> {
    let brought = tokio::task::spawn_blocking(move || tensor.to_host()).await;
    let stopping = |_| InferenceError::Unavailable("the node is shutting down".into());
    let brought = brought.map_err(stopping).flatten();
    brought.map_err(|error| Fault::new(error.code(), error.to_string()))
}

impl Drop for Intermediate {
    fn drop(&mut self) {
        self.let_go.tell(self.index, &self.tenant);
    }
}
