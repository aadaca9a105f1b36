use super::*;
use proptest::prelude::*;
use serde_json::json;

fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
    given.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
}

fn event() -> Event {
    Event {
        id: "7".to_owned(),
        source: "/shop".to_owned(),
        kind: "order.new".to_owned(),
        subject: Some("Größe 5%".to_owned()),
        time: Some("2026-01-02T03:04:05Z".to_owned()),
        attributes: vec![("tracestate".to_owned(), "a".to_owned())],
        content_type: Some("application/json".to_owned()),
        data: Bytes::from_static(b"{\"n\":1}"),
    }
}

#[test]
fn events_are_read_in_every_mode_as_they_are_written() {
    let event = event();
    let mut binary = event.headers();
    assert_eq!(binary["ce-subject"], "Gr%C3%B6%C3%9Fe%205%25");
    binary.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    assert_eq!(parse(&binary, &event.data), Ok(vec![event.clone()]));
    let structured = headers(&[("content-type", "application/cloudevents+json; charset=utf-8")]);
    assert_eq!(parse(&structured, &event.json().to_string().into()), Ok(vec![event.clone()]));
    let batch = headers(&[("content-type", "application/cloudevents-batch+json")]);
    let two = [event.clone(), Event { id: "8".to_owned(), ..event }];
    assert_eq!(parse(&batch, &batch_body(&two)), Ok(two.to_vec()));
    assert_eq!(parse(&batch, &Bytes::from_static(b"[]")), Ok(vec![]));
}

#[test]
fn data_is_json_text_or_base64() {
    let of = |content_type: Option<&str>, data: &'static [u8]| {
        let content_type = content_type.map(str::to_owned);
        Event { content_type, data: Bytes::from_static(data), ..event() }
    };
    assert_eq!(of(None, b"[1]").json()["data"], json!([1]));
    assert_eq!(of(Some("text/plain"), b"[1]").json()["data"], "[1]");
    assert_eq!(of(Some("image/png"), b"\x89").json()["data_base64"], "iQ==");
    assert_eq!(of(Some("application/json"), b"{").json()["data_base64"], "ew==");
    let empty = of(None, b"").json();
    assert!(empty.get("data").is_none() && empty.get("data_base64").is_none());
    let read = from_json(of(Some("text/plain"), b"[1]").json()).unwrap();
    assert_eq!(read.data, "[1]");
}

#[test]
fn notifications_of_stores_are_events() {
    let body = json!({"EventName": "s3:ObjectCreated:Put", "Key": "photos/a b.png", "Records": [{
        "eventVersion": "2.0",
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-01-02T03:04:05Z",
        "s3": {"bucket": {"name": "photos"}, "object": {"key": "in/a+b%2Bc.png", "sequencer": "17"}},
    }]});
    let events = parse(&headers(&[("content-type", "application/json")]), &body.to_string().into()).unwrap();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!([&*event.kind, &*event.source], ["s3:ObjectCreated:Put", "s3://photos"]);
    assert_eq!(event.subject.as_deref(), Some("in/a b+c.png"));
    assert_eq!(event.id, "17/s3:ObjectCreated:Put/in/a+b%2Bc.png");
    assert_eq!(serde_json::from_slice::<Value>(&event.data).unwrap(), body["Records"][0]);
    let test = json!({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "photos"});
    assert_eq!(parse(&HeaderMap::new(), &test.to_string().into()), Ok(vec![]));
}

#[test]
fn any_object_of_a_store_is_an_event() {
    let of = |object: Value, time: &str| {
        let record = json!({"eventName": "s3:ObjectCreated:Put", "eventTime": time,
            "s3": {"bucket": {"name": "b"}, "object": object}});
        let body = json!({ "Records": [record] }).to_string();
        parse(&HeaderMap::new(), &body.into()).unwrap().remove(0)
    };
    let raw = of(json!({"key": "100%.png"}), "t");
    assert_eq!(raw.subject.as_deref(), Some("100%.png"), "not every store escapes keys");
    let long = "%C3%A4".repeat(400);
    assert_eq!(of(json!({"key": long, "sequencer": "1"}), "t").subject, Some("ä".repeat(400)));
    let keys = ["1", "2"].map(|tag| of(json!({"key": "a", "eTag": tag}), "t").key());
    assert_ne!(keys[0], keys[1], "two writes at the same time");
    let same = [0, 1].map(|_| of(json!({"key": "a", "eTag": "1"}), "t").key());
    assert_eq!(same[0], same[1]);
}

#[test]
fn keys_of_different_events_differ() {
    let key = |source: &str, id: &str| Event { source: source.into(), id: id.into(), ..event() }.key();
    assert_ne!(key("a b", "c"), key("a", "b c"));
    assert_ne!(key("1", "1"), key("", "11"));
}

#[test]
fn incomplete_events_are_refused_with_the_reason() {
    let structured = headers(&[("content-type", "application/cloudevents+json")]);
    let given = |body: Value| parse(&structured, &body.to_string().into()).unwrap_err();
    let whole = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t"});
    let with = |name: &str, value: Value| {
        let mut changed = whole.clone();
        changed[name] = value;
        changed
    };
    assert!(parse(&structured, &whole.to_string().into()).is_ok());
    assert!(given(json!({"id": "1", "source": "s", "type": "t"})).contains("specversion"));
    assert!(given(with("Type", json!("other"))).contains("not the name"));
    assert!(given(with("id", Value::Null)).contains("attribute id"));
    assert!(given(with("specversion", json!("0.3"))).contains("specversion is 1.0"));
    assert!(given(with("a-b", json!("c"))).contains("not the name"));
    assert!(given(with("nested", json!({}))).contains("nested"));
    assert!(given(with("subject", json!("x".repeat(3_000)))).contains("2048"));
    assert!(given(with("data_base64", json!("!"))).contains("data_base64"));
    assert!(given(json!([])).contains("object"));
    let plain =
        |body: &'static str| parse(&HeaderMap::new(), &Bytes::from_static(body.as_bytes())).unwrap_err();
    assert!(plain("hello").contains("not JSON") && plain("{}").contains("neither"));
    assert!(plain(r#"{"Records": [{}]}"#).contains("eventName"));
    let signed = headers(&[("ce-specversion", "1.0"), ("ce-id", "%+1")]);
    assert!(parse(&signed, &Bytes::new()).is_err());
    let named = headers(&[
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "s"),
        ("ce-type", "t"),
        ("ce-data", "x"),
    ]);
    // In a batch, the attribute would take the place of the data.
    assert!(parse(&named, &Bytes::new()).unwrap_err().contains("not the name"));
    let binary = headers(&[("ce-specversion", "1.0"), ("ce-id", "%zz")]);
    assert!(parse(&binary, &Bytes::new()).unwrap_err().contains("escaped"));
}

proptest! {
    /// Any text passes through a header.
    #[test]
    fn texts_survive_headers(text: String) {
        let escaped = escape(&text);
        prop_assert!(HeaderValue::from_str(&escaped).is_ok());
        prop_assert_eq!(unescape(&escaped), Ok(text));
    }

    #[test]
    fn any_body_is_read_or_refused(body: Vec<u8>, kind in 0..3_usize) {
        let kinds = ["application/cloudevents+json", "application/cloudevents-batch+json", "application/json"];
        let _ = parse(&headers(&[("content-type", kinds[kind])]), &body.into());
    }
}
