//! Test support: names and sizes.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use weir_inference::Tensor;
use weir_types::{ElementType, ModelId, Name, TenantId, Version};

pub const MIB: u64 = 1 << 20;

pub fn id(name: &str) -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
}

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.element_type(), ElementType::Fp32);
    tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}
