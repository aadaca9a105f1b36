//! The terminal of `weir top`: the alternate screen, without line editing, until dropped.

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{IsTerminal as _, Read as _, Stdin, Write as _, stdin, stdout};
use std::time::{Duration, Instant};

/// Shows the alternate screen and hides the cursor.
const OPEN: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and leaves the alternate screen.
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves the cursor to the first column of the first line.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears everything below the cursor.
const CLEAR_BELOW: &str = "\x1b[J";
/// Lines and columns of a terminal that does not say its size.
const SIZE: (usize, usize) = (24, 80);
/// The byte that Ctrl-C sends.
const CTRL_C: u8 = 3;

/// The screen. Restores the terminal on drop.
pub(super) struct Screen {
    stdin: Stdin,
    /// The settings to restore; `None` if standard input is no terminal.
    before: Option<Termios>,
}

impl Screen {
    pub(super) fn open() -> Result<Self> {
        let stdin = stdin();
        let mut before = None;
        if stdin.is_terminal() {
            let settings = tcgetattr(&stdin).context("cannot read the terminal's settings")?;
            let mut raw = settings.clone();
            // Ctrl-C arrives as a byte, so that the terminal is restored after it.
            raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&stdin, OptionalActions::Now, &raw).context("cannot set up the terminal")?;
            before = Some(settings);
        }
        let screen = Self { stdin, before };
        write(OPEN)?;
        Ok(screen)
    }

    /// Shows lines from the top, as many and as much of each as fit.
    pub(super) fn show(&mut self, lines: &[String]) -> Result<()> {
        let (rows, columns) = size();
        let mut text = HOME.to_owned();
        for (place, line) in lines.iter().take(rows).enumerate() {
            if place > 0 {
                text.push_str("\r\n");
            }
            text.extend(line.chars().take(columns));
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_BELOW);
        write(&text)
    }

    /// Waits for `time`. Returns false as soon as the user ends the program.
    pub(super) fn wait(&mut self, time: Duration) -> Result<bool> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            if self.before.is_none() {
                std::thread::sleep(left);
                continue;
            }
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.stdin, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Ok(true),
                // The terminal was resized: the next frame has its new size.
                Err(Errno::INTR) => return Ok(true),
                Ok(_) => {}
                Err(error) => return Err(error).context("cannot wait for the keyboard"),
            }
            let mut keys = [0; 64];
            let count = self.stdin.lock().read(&mut keys).context("cannot read the keyboard")?;
            // The terminal was closed.
            let is_end = count == 0;
            if is_end || keys.iter().take(count).any(|key| matches!(key, b'q' | b'Q' | &CTRL_C)) {
                return Ok(false);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A failure means that the terminal was closed, so there is nothing to restore.
        let _ = write(CLOSE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(&self.stdin, OptionalActions::Now, before);
        }
    }
}

/// Lines and columns of the terminal.
fn size() -> (usize, usize) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => SIZE,
    }
}

fn write(text: &str) -> Result<()> {
    let mut stdout = stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to the terminal")
}
