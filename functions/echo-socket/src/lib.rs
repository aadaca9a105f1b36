//! Serves WebSockets, for tests: the path selects how. The functions `echo-socket-py` and
//! `echo-socket-ts` do the same in their languages.

use std::time::Duration;
use weir::websocket::{self, Message, WebSocket};
use weir::{Error, Request, Response, Result};

fn serve(request: Request) -> Result<Response> {
    let handler: fn(&mut WebSocket) -> Result<()> = match request.path() {
        "/echo" => echo,
        "/ticks" => ticks,
        "/flood" => flood,
        "/deaf" => deaf,
        "/idle" => idle,
        "/close" => close,
        "/fail" => |_| Err(Error::new(500, "as asked")),
        "/trap" => |_| std::process::abort(),
        "/large" => |socket| socket.send(vec![0; 2 << 20]),
        "/code" => |socket| socket.close(1005, ""),
        "/head" => return Ok(Response::text(head(&request))),
        "/refuse" => return Err(Error::new(403, "not you")),
        other => return Err(Error::new(404, format!("there is nothing at {other}"))),
    };
    // A proxy or a client may close the WebSocket if the server chooses none of its offers.
    let chosen = websocket::protocols(&request).into_iter().find(|name| name == "echo" || name == "wrong");
    let head = head(&request);
    let is_head_sent = request.query() == Some("head");
    let response = Response::websocket(request, move |socket| {
        if is_head_sent {
            socket.send(head)?;
        }
        handler(socket)
    })?;
    Ok(match chosen.as_deref() {
        Some("wrong") => response.with_header("sec-websocket-protocol", "other"),
        Some(chosen) => response.with_header("sec-websocket-protocol", chosen),
        None => response,
    })
}

/// Returns each message to the client, and logs the code of the close.
fn echo(socket: &mut WebSocket) -> Result<()> {
    while let Some(message) = socket.receive()? {
        socket.send(message)?;
    }
    if let Some(close) = socket.closed() {
        println!("closed with {} {}", close.code, close.reason);
    }
    Ok(())
}

/// Sends a number every 50 ms until a message arrives, and then that message.
fn ticks(socket: &mut WebSocket) -> Result<()> {
    let mut tick = 0;
    while !socket.wait(Duration::from_millis(50))? {
        socket.send(tick.to_string())?;
        tick += 1;
    }
    match socket.receive()? {
        Some(message) => socket.send(message),
        None => Ok(()),
    }
}

/// Sends messages of 64 KiB without an end, and logs their number.
fn flood(socket: &mut WebSocket) -> Result<()> {
    for sent in 1.. {
        socket.send(vec![b'x'; 64 << 10])?;
        println!("sent {sent}");
    }
    Ok(())
}

/// Receives nothing until 2 s have passed, and then counts the bytes of all messages until an empty
/// one.
fn deaf(socket: &mut WebSocket) -> Result<()> {
    std::thread::sleep(Duration::from_secs(2));
    let mut bytes = 0;
    while let Some(message) = socket.receive()? {
        bytes += message.as_bytes().len();
        if message == Message::from("") {
            return socket.send(bytes.to_string());
        }
    }
    Ok(())
}

/// Receives nothing for an hour.
fn idle(_: &mut WebSocket) -> Result<()> {
    std::thread::sleep(Duration::from_secs(3_600));
    Ok(())
}

/// Closes with the code and the reason in the first message: `CODE REASON`.
fn close(socket: &mut WebSocket) -> Result<()> {
    let message = socket.receive()?;
    let text = message.as_ref().and_then(Message::as_text).unwrap_or_default();
    let parts = text.split_once(' ').unwrap_or((text, ""));
    let code = parts.0.parse().map_err(|_| Error::new(400, "send CODE REASON"))?;
    socket.close(code, parts.1)
}

/// The method, the target and the headers, a line each.
fn head(request: &Request) -> String {
    let mut lines = vec![format!("{} {} {:?}", request.method(), request.path(), request.query())];
    let headers = request.headers().into_iter();
    lines.extend(headers.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(&value))));
    lines.join("\n")
}

weir::http_function!(serve);
