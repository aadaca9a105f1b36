use super::*;
use proptest::prelude::*;

/// All frames of `bytes`, which arrive in pieces of `piece` bytes.
fn frames(bytes: &[u8], piece: usize) -> Result<Vec<ServerFrame>, NatsError> {
    let mut codec = Codec::new(16);
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        buffer.extend_from_slice(piece);
        while let Some(frame) = codec.decode(&mut buffer)? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn message(
    subject: &str,
    reply: Option<&str>,
    headers: &'static [u8],
    payload: &'static [u8],
) -> ServerFrame {
    ServerFrame::Message(MessageFrame {
        subject: subject.to_owned(),
        subscription: 2,
        reply: reply.map(str::to_owned),
        headers: Bytes::from_static(headers),
        payload: Bytes::from_static(payload),
        discarded_bytes: None,
    })
}

#[test]
fn frames_are_parsed_however_they_arrive() {
    let sent = b"INFO {\"a\":1} \r\nMSG orders.new 2 5\r\nhello\r\nPING\r\n\
        HMSG orders.new 2 $JS.ACK.1 12 15\r\nNATS/1.0\r\n\r\nabc\r\n-ERR 'no'\r\n+OK\r\nPONG\r\nMSG a 2 0\r\n\r\n";
    let expected = [
        ServerFrame::Info("{\"a\":1}".to_owned()),
        message("orders.new", None, b"", b"hello"),
        ServerFrame::Ping,
        message("orders.new", Some("$JS.ACK.1"), b"NATS/1.0\r\n\r\n", b"abc"),
        ServerFrame::Error("no".to_owned()),
        ServerFrame::Ok,
        ServerFrame::Pong,
        message("a", None, b"", b""),
    ];
    for piece in [1, 2, 3, 7, sent.len()] {
        assert_eq!(frames(sent, piece).unwrap(), expected, "in pieces of {piece}");
    }
}

#[test]
fn contents_above_the_limit_are_discarded_and_the_next_frames_are_read() {
    for piece in [1, 5, 64] {
        let parsed = frames(b"MSG big 2 ack 17\r\n12345678901234567\r\nPING\r\n", piece).unwrap();
        let [ServerFrame::Message(big), ServerFrame::Ping] = &parsed[..] else { panic!("{parsed:?}") };
        assert_eq!((big.discarded_bytes, big.reply.as_deref()), (Some(17), Some("ack")));
        assert!(big.payload.is_empty());
    }
}

#[test]
fn other_protocols_are_refused() {
    for sent in [
        &b"HTTP/1.1 400 Bad Request\r\n"[..],
        b"MSG a 2 3\r\nabcdef\r\n",
        b"MSG a 2 -1\r\n",
        b"HMSG a 2 9 3\r\nabc\r\n",
        b"MSG a\r\n",
        b"\x16\x03\x01\xff\n",
    ] {
        assert!(frames(sent, 64).is_err(), "{sent:?}");
    }
    assert!(frames(&vec![b'a'; LINE_LEN_MAX + 1], 4096).is_err());
}

proptest! {
    /// Any bytes are parsed to frames or refused, within the memory that was announced.
    #[test]
    fn any_bytes_are_frames_or_errors(bytes: Vec<u8>, piece in 1_usize..9) {
        let _ = frames(&bytes, piece);
    }

    #[test]
    fn pieces_do_not_matter(payload in "[a-z]{0,20}", piece in 1_usize..40) {
        let sent = format!("MSG s 1 {}\r\n{payload}\r\nPONG\r\n", payload.len());
        prop_assert_eq!(frames(sent.as_bytes(), piece).unwrap(), frames(sent.as_bytes(), sent.len()).unwrap());
    }
}
