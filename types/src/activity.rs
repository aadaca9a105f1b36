//! Which tenants use a shared resource.

use crate::TenantId;
use std::time::{Duration, Instant};

/// The time after its last arrival for which a tenant uses the resource.
const USES_FOR: Duration = Duration::from_secs(1);

/// Notes the arrivals of tenants at a shared resource, in order to know whether several tenants use
/// it. A tenant uses the resource until one second after its last arrival.
#[derive(Debug, Default)]
pub struct TenantActivity {
    last: Option<(TenantId, Instant)>,
    /// When a tenant other than the one in `last` arrived last.
    last_of_others: Option<Instant>,
}

impl TenantActivity {
    /// Notes that `tenant` arrived at this time, which is not before earlier arrivals.
    pub fn arrives(&mut self, tenant: &TenantId, at: Instant) {
        match &mut self.last {
            Some((last, last_at)) if last == tenant => *last_at = at,
            last => {
                let before = last.replace((tenant.clone(), at));
                self.last_of_others = before.map(|(_, at)| at);
            }
        }
    }

    /// Whether a tenant other than `tenant` uses the resource.
    #[must_use]
    pub fn is_used_by_others(&self, tenant: &TenantId, now: Instant) -> bool {
        let last_of_others = match &self.last {
            Some((last, _)) if last == tenant => self.last_of_others,
            Some((_, at)) => Some(*at),
            None => None,
        };
        last_of_others.is_some_and(|at| now.saturating_duration_since(at) < USES_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_uses_the_resource_for_a_second() {
        let tenants = ["a", "b", "c"].map(|name| TenantId::new(name).unwrap());
        let [a, b, c] = &tenants;
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut activity = TenantActivity::default();
        assert!(!activity.is_used_by_others(a, at(0)));
        activity.arrives(a, at(0));
        activity.arrives(a, at(10));
        assert!(!activity.is_used_by_others(a, at(10)), "its own arrivals do not count");
        assert!(activity.is_used_by_others(b, at(10)));
        activity.arrives(b, at(20));
        assert!(activity.is_used_by_others(a, at(20)) && activity.is_used_by_others(c, at(20)));
        activity.arrives(b, at(900));
        assert!(activity.is_used_by_others(b, at(1_009)));
        assert!(!activity.is_used_by_others(b, at(1_010)), "the last arrival of another is a second ago");
        assert!(activity.is_used_by_others(a, at(1_899)) && !activity.is_used_by_others(a, at(1_900)));
    }
}
