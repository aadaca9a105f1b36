use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

const INFO: &str = "INFO {\"version\":\"2\",\"headers\":true}\r\n";

async fn open(stream: DuplexStream) -> Result<Connection<DuplexStream>, NatsError> {
    Connection::open(stream, 1_000, &Login::Token("secret".to_owned()), |plain, _| async { Ok(plain) }).await
}

/// Acts as the server during a login: returns the frames of the client up to its first PING, and
/// sends `answer`.
async fn log_in(server: &mut DuplexStream, answer: &str) -> String {
    server.write_all(INFO.as_bytes()).await.unwrap();
    let mut sent = String::new();
    while !sent.ends_with("PING\r\n") {
        sent.push(char::from(server.read_u8().await.unwrap()));
    }
    server.write_all(answer.as_bytes()).await.unwrap();
    sent
}

/// A connection after its login, and the server's end of it.
async fn connected() -> (Connection<DuplexStream>, DuplexStream) {
    let (client, mut server) = duplex(64 << 10);
    let joined = tokio::join!(open(client), log_in(&mut server, "PONG\r\n"));
    assert!(joined.1.starts_with("CONNECT {") && joined.1.contains("\"auth_token\":\"secret\""));
    (joined.0.unwrap(), server)
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_checked_and_given_up_although_callers_do_other_work() {
    let (mut connection, mut server) = connected().await;
    let started_at = Instant::now();
    let error = loop {
        // As a reader does, which writes its state every second.
        if let Ok(ended) = timeout(Duration::from_secs(1), connection.message()).await {
            break ended.unwrap_err();
        }
    };
    assert!(matches!(error, NatsError::Timeout(_)), "{error}");
    assert_eq!(started_at.elapsed().as_secs(), 2 * SILENCE.as_secs());
    drop(connection);
    let mut sent = String::new();
    server.read_to_string(&mut sent).await.unwrap();
    assert_eq!(sent, "PING\r\n");
}

#[tokio::test(start_paused = true)]
async fn answers_keep_a_connection_without_messages() {
    let (mut connection, mut server) = connected().await;
    let mut seconds = 0;
    while seconds < 100 {
        assert!(timeout(Duration::from_secs(5), connection.message()).await.is_err());
        seconds += 5;
        server.write_all(b"PONG\r\n").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_never_answers_or_says_too_much_is_refused() {
    let (client, _server) = duplex(1_000);
    assert!(matches!(open(client).await, Err(NatsError::Timeout(_))));
    let (client, mut server) = duplex(64 << 10);
    server.write_all(INFO.as_bytes()).await.unwrap();
    assert!(matches!(open(client).await, Err(NatsError::Timeout(_))), "no answer to the login");
    let (client, mut server) = duplex(1 << 20);
    let error = format!("-ERR '{}\t'\r\n", "x".repeat(10_000));
    let joined = tokio::join!(open(client), log_in(&mut server, &error));
    let Err(NatsError::Refused(text)) = joined.0 else { panic!("the login was refused") };
    assert_eq!(text.len(), 200);
}
