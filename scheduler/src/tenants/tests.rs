use super::*;

const MS: u64 = 1_000_000;

/// A tenant starts two invocations whose loads are estimated far too high.
#[test]
fn estimates_of_one_tenant_do_not_delay_another() {
    let mut tenants = Tenants::new(BTreeMap::new(), TenantLimits::default());
    let [one, other] = ["one", "other"].map(|name| tenants.retain(&TenantId::new(name).unwrap()));
    for _ in 0..2 {
        tenants.begin_waiting(one);
        tenants.end_waiting(one);
        tenants.start(one, 450 * MS);
    }
    tenants.begin_waiting(other);
    (0..2).for_each(|_| tenants.finish(one, 450 * MS, 60 * MS));
    tenants.begin_waiting(one);
    assert!(tenants.is_behind(other, one));
    assert!(tenants.is_ahead(one));
}

/// A tenant that was idle has no claim to the time that others used meanwhile, not even if some
/// tenant has an invocation that lasts.
#[test]
fn idle_tenants_save_nothing() {
    let mut tenants = Tenants::new(BTreeMap::new(), TenantLimits::default());
    let [one, other, lasting] =
        ["one", "other", "lasting"].map(|name| tenants.retain(&TenantId::new(name).unwrap()));
    tenants.start(lasting, MS);
    for _ in 0..10 {
        tenants.begin_waiting(one);
        tenants.end_waiting(one);
        tenants.start(one, 100 * MS);
        tenants.finish(one, 100 * MS, 100 * MS);
    }
    let lag_ns = |tenants: &Tenants| {
        let [one, other] = [one, other].map(|key| tenants.table.get(key.0).clock_ns);
        one - other
    };
    tenants.begin_waiting(other);
    assert_eq!(lag_ns(&tenants), 100 * MS, "the time since the last start");
    // A start keeps the lead of a tenant over those that used the device during its wait.
    tenants.start(one, 500 * MS);
    tenants.finish(one, 500 * MS, 500 * MS);
    tenants.end_waiting(other);
    tenants.start(other, 50 * MS);
    assert_eq!(lag_ns(&tenants), 550 * MS);
}

/// A tenant keeps an invocation running that does not use the device.
#[test]
fn lasting_invocation_saves_nothing() {
    let mut tenants = Tenants::new(BTreeMap::new(), TenantLimits::default());
    let [lasting, other] = ["lasting", "other"].map(|name| tenants.retain(&TenantId::new(name).unwrap()));
    tenants.start(lasting, 0);
    for _ in 0..10 {
        tenants.start(other, 100 * MS);
        tenants.finish(other, 100 * MS, 100 * MS);
    }
    tenants.begin_waiting(lasting);
    assert_eq!(tenants.table.get(lasting.0).clock_ns, 900 * MS);
}

/// One tenant has used other devices for long; two tenants share a device that it does not use.
#[test]
fn tenant_begins_no_later_than_those_that_wait() {
    let mut tenants = Tenants::new(BTreeMap::new(), TenantLimits::default());
    let [elsewhere, waits, comes] =
        ["elsewhere", "waits", "comes"].map(|name| tenants.retain(&TenantId::new(name).unwrap()));
    tenants.begin_waiting(waits);
    for _ in 0..10 {
        tenants.start(elsewhere, 1_000 * MS);
        tenants.finish(elsewhere, 1_000 * MS, 1_000 * MS);
    }
    tenants.begin_waiting(comes);
    assert!(!tenants.is_behind(waits, comes));
}
