//! What loads cost, by the prices of the fake driver: see `fake-cuda/README.md`.

use crate::support::Machine;
use bytes::Bytes;
use weir_device::cuda::{BLOCK_BYTES, Source, Tensor, TensorKey, TensorStore, TransferError, Wanted};
use weir_fake_cuda::{CopyThreads, Costs};
use weir_types::ContentHash;

/// Weights are asked for in groups of so many bytes.
const GROUP_BYTES: usize = 8 << 20;

/// Lengths of the weights of ResNet-50 in fp32, batch normalisation folded: 102 MB in all.
fn resnet50() -> Vec<usize> {
    let mut elements = vec![64 * 3 * 49, 64];
    let mut channels_in = 64;
    for (planes, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..blocks {
            let convolutions = [(channels_in, planes, 1), (planes, planes, 9), (planes, 4 * planes, 1)];
            let shortcut = (block == 0).then_some((channels_in, 4 * planes, 1));
            for (from, to, kernel) in convolutions.into_iter().chain(shortcut) {
                elements.extend([from * to * kernel, to]);
            }
            channels_in = 4 * planes;
        }
    }
    elements.extend([2048 * 1000, 1000]);
    elements.into_iter().map(|count| 4 * count).collect()
}

/// Bytes of which no two blocks are alike.
fn contents(len: usize, number: usize) -> Bytes {
    let mut word = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Weights in groups, in the order in which runs read them.
fn wanted(lengths: &[usize]) -> Vec<Vec<Wanted>> {
    let mut groups: Vec<Vec<Wanted>> = Vec::new();
    let mut group_bytes = GROUP_BYTES;
    for (number, len) in lengths.iter().enumerate() {
        if group_bytes >= GROUP_BYTES {
            groups.push(Vec::new());
            group_bytes = 0;
        }
        group_bytes += len;
        let key = TensorKey { hash: ContentHash::of(&number.to_le_bytes()), layout: 0 };
        let wanted = Wanted { key, source: Source::Pageable(contents(*len, number)) };
        groups.last_mut().unwrap().push(wanted);
    }
    groups
}

/// The costs of a load that nothing of is there.
fn load(machine: &Machine, store: &TensorStore, wanted: &[Vec<Wanted>]) -> Result<Costs, TransferError> {
    let before = machine.fake.costs();
    let held = store.acquire(wanted.to_vec())?;
    held.iter().flatten().try_for_each(Tensor::wait)?;
    Ok(machine.fake.costs().since(&before))
}

/// The rate of a load as a share of that of one copy of pinned memory, in per cent.
fn percent_of_pinned(costs: &Costs, threads: CopyThreads) -> u64 {
    let bare_ns = 2_000 + costs.bytes * 1_000_000_000 / 55_600_000_000;
    bare_ns * 100 / costs.load_ns(threads)
}

#[test]
fn before() {
    let machine = Machine::new(0);
    let store = TensorStore::new(&machine.pool(256 * BLOCK_BYTES), &machine.engine()).unwrap();
    let wanted = wanted(&resnet50());
    for what in ["first", "again"] {
        let costs = load(&machine, &store, &wanted).unwrap();
        let threads = CopyThreads { count: 4, start_ns: 30_000 };
        println!("{what}: {} % {} us {costs:?} {} set access", percent_of_pinned(&costs, threads), costs.load_ns(threads) / 1000, machine.fake.calls("cuMemSetAccess"));
        store.reclaim(u64::MAX);
    }
}
