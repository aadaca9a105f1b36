//! Images decoded by functions in every language.

use serde_json::{Value, json};
use weir_tests::{TestNode, function, has_function, image};

const ALL: [&str; 5] = ["images", "images-py", "images-ts", "images-c", "images-go"];

#[tokio::test]
async fn images_are_decoded_in_every_language() {
    let node = TestNode::start().await;
    let pixels = image("picture.rgb");
    let mut prepared = None;
    for name in ALL.into_iter().filter(|name| has_function(name)) {
        node.deploy_with(name, "limits.memory_bytes=134217728", function(name)).await;
        let post = async |path: &str, body| node.post(&format!("/fn/{name}{path}"), body).await;
        for (file, format) in [("picture.png", "png"), ("picture.webp", "webp"), ("turned.jpg", "jpeg")] {
            let info: Value = post("/info", image(file)).await.ok().json();
            assert_eq!(info, json!({"format": format, "width": 37, "height": 23}), "{name}: {file}");
            let decoded = post("/pixels", image(file)).await.ok().body;
            assert_eq!(decoded.len(), pixels.len(), "{name}: {file}");
            let largest = decoded.iter().zip(&pixels).map(|(made, wanted)| made.abs_diff(*wanted)).max();
            // The other formats are without loss.
            let tolerance = if format == "jpeg" { 24 } else { 0 };
            assert!(largest <= Some(tolerance), "{name}: {file}: {largest:?}");
        }
        let tensor = post("/imagenet", image("picture.png")).await.ok().body;
        assert_eq!(tensor.len(), 3 * 224 * 224 * 4, "{name}");
        let expected = prepared.get_or_insert_with(|| tensor.clone());
        assert!(tensor == *expected, "{name}: the languages differ");
        for (body, text) in [
            (b"GIF89a".to_vec().into(), "no JPEG, PNG or WebP image"),
            (image("picture.png").slice(..600), "the PNG image cannot be decoded"),
        ] {
            let answer = post("/pixels", body).await;
            assert_eq!(answer.status, 400, "{name}: {}", answer.text());
            assert!(answer.text().contains(text), "{name}: {}", answer.text());
        }
        assert_eq!(post("/nothing", image("picture.png")).await.status, 404, "{name}");
    }
    assert!(prepared.is_some());
}
