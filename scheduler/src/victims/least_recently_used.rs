//! The model goes whose last grant is longest ago.

use super::VictimPolicy;
use crate::DeviceView;
use weir_types::ModelId;

/// Least recently used first.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastRecentlyUsed;

impl VictimPolicy for LeastRecentlyUsed {
    fn choose(
        &self,
        device: &DeviceView,
        bytes: u64,
        keep: &dyn Fn(&ModelId) -> bool,
        victims: &mut Vec<ModelId>,
    ) -> bool {
        let mut candidates: Vec<_> = device.candidates().filter(|candidate| !keep(candidate.model)).collect();
        // Models granted together were used together: their names make the order the same in every run.
        candidates.sort_unstable_by(|a, b| (a.used, a.model).cmp(&(b.used, b.model)));
        let mut freed = 0_u64;
        for candidate in candidates {
            if freed >= bytes {
                break;
            }
            freed = freed.saturating_add(candidate.bytes);
            victims.push(candidate.model.clone());
        }
        freed >= bytes
    }
}
