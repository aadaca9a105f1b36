//! Client of the program that runs kernels.

use anyhow::{Context as _, Result, bail};
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use weir_kernels::{Argument, Launch};

/// Code for an argument without a buffer.
const NO_BUFFER: u32 = u32::MAX;
/// Threads that run blocks.
const WORKERS: u32 = 2;

/// A running emulator; dropping it stops the program.
pub struct Emulator {
    child: Child,
}

impl Emulator {
    /// Start the program, with AddressSanitizer if `sanitised`.
    pub fn start(sanitised: bool) -> Result<Self> {
        let name = if sanitised { "emulate-sanitised" } else { "emulate" };
        let program = std::path::Path::new(env!("OUT_DIR")).join(name);
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child })
    }

    /// Run `launches` in sequence on `buffers`, and return the final contents of the buffers.
    /// `order` selects the order of threads.
    ///
    /// # Errors
    /// If the emulator finds a launch that does not fit its kernel, a barrier that some threads do
    /// not reach, or, with AddressSanitizer, an access past a buffer.
    pub fn run(
        &mut self,
        launches: &[Launch<usize>],
        buffers: &[Vec<u8>],
        order: u32,
    ) -> Result<Vec<Vec<u8>>> {
        let mut request = Vec::new();
        for number in [order, WORKERS, buffers.len() as u32] {
            request.extend(number.to_le_bytes());
        }
        for buffer in buffers {
            request.extend((buffer.len() as u64).to_le_bytes());
            request.extend(buffer);
        }
        request.extend((launches.len() as u32).to_le_bytes());
        launches.iter().for_each(|launch| write_launch(&mut request, launch));
        match self.ask(&request, buffers) {
            Ok(answer) => answer,
            Err(error) => {
                let said = self.last_words();
                Err(error.context(format!("the emulator ended; it said:\n{said}")))
            }
        }
    }

    fn ask(&mut self, request: &[u8], buffers: &[Vec<u8>]) -> Result<Result<Vec<Vec<u8>>>> {
        let (Some(stdin), Some(stdout)) = (&mut self.child.stdin, &mut self.child.stdout) else {
            bail!("the emulator has ended")
        };
        stdin.write_all(request)?;
        stdin.flush()?;
        let mut read = |bytes: usize| -> Result<Vec<u8>> {
            let mut buffer = vec![0; bytes];
            stdout.read_exact(&mut buffer)?;
            Ok(buffer)
        };
        let length = read(4)?.try_into().map(u32::from_le_bytes).unwrap_or_default();
        let fault = read(length as usize)?;
        let after = buffers.iter().map(|buffer| read(buffer.len())).collect::<Result<Vec<_>>>()?;
        if fault.is_empty() {
            return Ok(Ok(after));
        }
        Ok(Err(anyhow::anyhow!("{}", String::from_utf8_lossy(&fault))))
    }

    fn last_words(&mut self) -> String {
        self.child.stdin = None;
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            stderr.read_to_string(&mut said).ok();
        }
        said.lines().take(12).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The program exits at the end of its input.
        self.child.stdin = None;
        self.child.wait().ok();
    }
}

fn write_launch(request: &mut Vec<u8>, launch: &Launch<usize>) {
    let name = launch.kernel.name.as_bytes();
    request.extend((name.len() as u32).to_le_bytes());
    request.extend(name);
    for size in launch.grid.iter().chain(&launch.block).chain([&launch.shared_bytes]) {
        request.extend(size.to_le_bytes());
    }
    request.extend((launch.arguments.len() as u32).to_le_bytes());
    for argument in &launch.arguments {
        let plain = match argument {
            Argument::Address(buffer) => {
                request.extend((*buffer as u32).to_le_bytes());
                continue;
            }
            Argument::Null => Argument::Null,
            Argument::U32(number) => Argument::U32(*number),
            Argument::U64(number) => Argument::U64(*number),
            Argument::F32(number) => Argument::F32(*number),
            Argument::Bytes(bytes) => Argument::Bytes(bytes.clone()),
        };
        let bytes = plain.to_bytes();
        request.extend(NO_BUFFER.to_le_bytes());
        request.extend((bytes.len() as u32).to_le_bytes());
        request.extend(bytes);
    }
}

/// Names of all compiled kernels.
pub fn kernels() -> Result<Vec<String>> {
    let program = std::path::Path::new(env!("OUT_DIR")).join("emulate");
    let output = Command::new(program).arg("--names").output()?;
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}
