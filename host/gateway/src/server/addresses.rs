//! Open connections by remote address.

use crate::remote::network;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Counts open connections by remote address. Cheap to clone.
#[derive(Clone)]
pub(super) struct RemoteAddresses(Arc<AddressesShared>);

struct AddressesShared {
    per_address_max: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// An open connection of an address.
pub(super) struct AddressPermit {
    addresses: RemoteAddresses,
    from: IpAddr,
}

impl RemoteAddresses {
    pub(super) fn new(per_address_max: usize) -> Self {
        Self(Arc::new(AddressesShared { per_address_max, open: Mutex::default() }))
    }

    /// Counts a connection; `None` if the address has as many as it may.
    pub(super) fn open(&self, from: IpAddr) -> Option<AddressPermit> {
        let from = network(from);
        let mut open = self.0.open.lock();
        let count = open.entry(from).or_default();
        if *count >= self.0.per_address_max {
            // Only a limit of zero leaves an entry without connections.
            return None;
        }
        *count += 1;
        Some(AddressPermit { addresses: self.clone(), from })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut open = self.addresses.0.open.lock();
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_an_address_are_limited_and_released() {
        let addresses = RemoteAddresses::new(2);
        let open = |ip: &str| addresses.open(ip.parse().unwrap());
        let first = open("192.0.2.1").unwrap();
        let second = open("::ffff:192.0.2.1").unwrap();
        assert!(open("192.0.2.1").is_none());
        assert!(open("192.0.2.2").is_some());
        drop(first);
        assert!(open("192.0.2.1").is_some());
        let held = [open("2001:db8::1").unwrap(), open("2001:db8::2").unwrap()];
        assert!(open("2001:db8::3").is_none(), "one network");
        assert!(open("2001:db8:0:1::1").is_some(), "another network");
        drop(held);
        drop(second);
        assert!(addresses.0.open.lock().is_empty());
    }
}
