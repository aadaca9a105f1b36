//! Lifetime, limits and tenant isolation of a node's intermediates.

use super::*;
use weir_types::{ElementType, Shape};

const KIB: usize = 1 << 10;

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn tensor(arena: &Arena, kib: usize) -> Tensor {
    let shape = Shape::new(&[u32::try_from(kib * KIB).unwrap()]).unwrap();
    Tensor::new(ElementType::Uint8, shape, arena.buffer(kib * KIB).unwrap().freeze()).unwrap()
}

fn begin(arena: &Arena, len_max: usize) -> Arc<Intermediates> {
    let config = IntermediatesConfig { free_percent_max: 50, len_max, ..IntermediatesConfig::default() };
    Arc::new(Intermediates::start(NodeId(7), None, arena.clone(), config, Metrics::new()))
}

#[tokio::test]
async fn intermediate_is_visible_to_its_tenant_until_removed() {
    let arena = Arena::new(4 << 20);
    let all = begin(&arena, 4);
    let ours = tenant("ours");
    let until = Instant::now() + Duration::from_secs(60);
    let given = tensor(&arena, 128);
    let index = all.keep(&ours, &given, until).unwrap();
    assert_eq!(index.node, NodeId(7));
    let taken = all.take(&ours, index, 128 << 10).await.unwrap();
    assert_eq!(taken.as_ptr(), given.data().as_ptr(), "it was copied");
    // Another tenant only learns that it is missing.
    let of_others = all.take(&tenant("others"), index, 128 << 10).await.unwrap_err();
    assert_eq!(of_others.code, ErrorCode::IntermediateLost);
    all.forget(&tenant("others"), index.number);
    assert!(all.take(&ours, index, 128 << 10).await.is_ok());
    let wrong = all.take(&ours, index, 1).await.unwrap_err();
    assert_eq!(wrong.code, ErrorCode::Internal, "{}", wrong.text);
    all.forget(&ours, index.number);
    let gone = all.take(&ours, index, 128 << 10).await.unwrap_err();
    assert!(gone.text.contains("7-0") && gone.text.contains("released"), "{}", gone.text);
    let next = all.keep(&ours, &given, until).unwrap();
    assert_ne!(next, index, "numbers are not used again");
    // An intermediate of another node, without a cluster.
    let elsewhere = all.take(&ours, Index { node: NodeId(8), ..next }, 128 << 10).await.unwrap_err();
    assert_eq!(elsewhere.code, ErrorCode::IntermediateLost);
}

#[tokio::test]
async fn small_or_oversized_tensors_are_not_kept_and_kept_ones_expire() {
    let arena = Arena::new(1 << 20);
    let all = begin(&arena, 3);
    let ours = tenant("ours");
    let now = Instant::now();
    let minute = Duration::from_secs(60);
    assert!(all.keep(&ours, &tensor(&arena, 63), now + minute).is_none(), "it is small");
    let kept: Vec<_> = (1..=4).map(|_| tensor(&arena, 128)).collect();
    let mut numbers = kept.iter().zip(1..).map(|(tensor, at)| all.keep(&ours, tensor, now + at * minute));
    // Of 1024 KiB, this test uses 512, including the intermediates: they may take half of the rest.
    assert!(numbers.by_ref().take(2).all(|index| index.is_some()));
    drop(numbers);
    let other = tensor(&arena, 512);
    assert!(all.keep(&ours, &kept[2], now + minute).is_none(), "half of what is free is taken");
    drop(other);
    assert!(all.keep(&ours, &kept[2], now + 3 * minute).is_some());
    assert!(all.keep(&ours, &kept[3], now + 4 * minute).is_none(), "there may be three");
    assert_eq!(all.kept.lock().expire(now + minute).len(), 1);
    assert_eq!(all.kept.lock().len(), 2);
    assert_eq!(all.kept.lock().bytes(), 256 << 10);
    assert_eq!(all.kept.lock().expire(now + 9 * minute).len(), 2);
    assert_eq!(all.kept.lock().bytes(), 0);
}
