//! Images: limits of decodings, and their effect on other calls.

use flate2::{Compression, Crc, write::ZlibEncoder};
use std::io::Write as _;
use weir_tests::{TestNode, function, image};
use weir_types::ErrorCode;

/// A grey PNG whose header states `width` and `height`, with the first `rows` rows, all black.
fn png(width: u32, height: u32, rows: u32) -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |name: &[u8], data: &[u8]| {
        let mut checksum = Crc::new();
        checksum.update(name);
        checksum.update(data);
        png.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        png.extend([name, data].concat());
        png.extend(checksum.sum().to_be_bytes());
    };
    chunk(b"IHDR", &[&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 0, 0, 0, 0]].concat());
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::best());
    let row = vec![0; width as usize + 1];
    (0..rows).for_each(|_| pixels.write_all(&row).unwrap());
    chunk(b"IDAT", &pixels.finish().unwrap());
    chunk(b"IEND", b"");
    png
}

#[tokio::test]
async fn image_beyond_a_limit_is_refused_with_the_limit() {
    let node = TestNode::builder()
        .set("sandbox.images.pixels_max", 1_000_000)
        .set("sandbox.images.encoded_bytes_max", 100_000)
        .start()
        .await;
    node.deploy("images", function("images")).await;
    node.deploy_with("small", "limits.tensor_bytes=3000000", function("images")).await;
    let square = node.post("/fn/images/pixels", png(1_000, 1_000, 1_000)).await.ok();
    assert!(square.body.len() == 3_000_000 && square.body.iter().all(|pixel| *pixel == 0));
    for (path, body, status, text) in [
        // The file has 67 bytes, and the image 4 GB.
        ("images/pixels", png(65_000, 65_000, 0), 400, "65000 x 65000 pixels"),
        ("images/pixels", png(1_001, 1_000, 1_000), 400, "sandbox.images.pixels_max"),
        ("images/pixels", vec![7; 100_001], 400, "sandbox.images.encoded_bytes_max"),
        ("images/pixels", png(100, 100, 99), 400, "the PNG image cannot be decoded"),
        ("small/pixels", png(1_000, 1_000, 1_000), 503, "raise limits.tensor_bytes"),
    ] {
        let answer = node.post(&format!("/fn/{path}"), body).await;
        assert_eq!(answer.status, status, "{text}: {}", answer.text());
        assert!(answer.text().contains(text), "{text}: {}", answer.text());
    }
    assert_eq!(node.post("/fn/small/info", png(1_000, 1_000, 0)).await.ok().status, 200);
    // All memory of the refused images is released.
    node.post("/fn/images/pixels", image("picture.png")).await.ok();
}

#[tokio::test]
async fn decoding_counts_towards_processor_time() {
    let node = TestNode::start().await;
    node.deploy_with("images", "limits.cpu_time_ms=200", function("images")).await;
    node.post("/fn/images/info", png(7_000, 7_000, 0)).await.ok();
    let refusal = node.post("/fn/images/imagenet", png(7_000, 7_000, 7_000)).await.refusal();
    assert_eq!((refusal.status, refusal.code), (504, ErrorCode::CpuTimeLimit), "{}", refusal.text);
    assert!(node.metric("weir_guest_cpu_seconds_total", "function=\"images\"").await > 0.2);
    assert!(node.metric("weir_phase_seconds_count", "phase=\"image_decode\"").await >= 2.0);
    node.post("/fn/images/pixels", image("picture.png")).await.ok();
}

#[tokio::test]
async fn decoding_stops_at_the_deadline() {
    let node = TestNode::start().await;
    node.deploy_with("images", "limits.deadline_ms=20", function("images")).await;
    let answer = node.post("/fn/images/imagenet", png(7_000, 7_000, 7_000)).await;
    assert_eq!(answer.status, 504, "{}", answer.text());
    node.deploy("images", function("images")).await;
    node.post("/fn/images/pixels", image("picture.png")).await.ok();
}
