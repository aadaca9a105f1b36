//! What a kernel is launched with.

use super::error::CudaError;
use std::ffi::c_void;

/// The most bytes of parameters that every device takes.
const PARAMETER_BYTES_MAX: usize = 4 << 10;

/// How many threads run a kernel, in which arrangement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Shared memory of a block, besides what the kernel declares.
    pub shared_bytes: u32,
}

impl Launch {
    /// `threads` threads in a row, in blocks of `block`, the last of which may have threads to spare.
    #[must_use]
    pub fn linear(threads: u32, block: u32) -> Self {
        Self {
            grid: [threads.div_ceil(block.max(1)).max(1), 1, 1],
            block: [block.max(1), 1, 1],
            shared_bytes: 0,
        }
    }
}

/// The values of a kernel's parameters, in order.
///
/// ```
/// use weir_device::cuda::Parameters;
/// let mut parameters = Parameters::default();
/// parameters.address(0x7f00_0000_0000).u32(1024).f32(0.5);
/// assert_eq!(parameters.len(), 3);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The values, each from a new word on, so that every one is aligned.
    words: Vec<u64>,
    /// Where each begins.
    starts: Vec<usize>,
}

impl Parameters {
    /// Add a pointer.
    pub fn address(&mut self, address: u64) -> &mut Self {
        self.u64(address)
    }

    /// Add a 64-bit integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.starts.push(self.words.len());
        self.words.push(value);
        self
    }

    /// Add a 32-bit integer without sign.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.push(&value.to_ne_bytes())
    }

    /// Add a 32-bit integer.
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.push(&value.to_ne_bytes())
    }

    /// Add a 32-bit floating-point number.
    pub fn f32(&mut self, value: f32) -> &mut Self {
        self.push(&value.to_ne_bytes())
    }

    /// Add a structure, given as its bytes in the device's layout.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<&mut Self, CudaError> {
        if self.words.len() * 8 + bytes.len() > PARAMETER_BYTES_MAX {
            return Err(CudaError::Invalid(format!(
                "a kernel takes at most {PARAMETER_BYTES_MAX} bytes of parameters"
            )));
        }
        Ok(self.push(bytes))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Forget them, and keep the room.
    pub fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
    }

    /// Where each value is, for the driver to copy from. Valid until the next change.
    pub(super) fn addresses(&self) -> Vec<*mut c_void> {
        let words = self.words.as_ptr();
        self.starts.iter().map(|start| words.wrapping_add(*start).cast_mut().cast()).collect()
    }

    fn push(&mut self, bytes: &[u8]) -> &mut Self {
        self.starts.push(self.words.len());
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.words.push(u64::from_ne_bytes(word));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_one_by_one_where_the_driver_looks() {
        let mut parameters = Parameters::default();
        parameters.address(7).u32(8).f32(0.5).bytes(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap().i32(-1);
        assert_eq!(parameters.starts, [0, 1, 2, 3, 5]);
        let bytes: Vec<u8> = parameters.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(&bytes[24..34], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(bytes[16..20], 0.5_f32.to_ne_bytes());
        assert_eq!(bytes[40..44], (-1_i32).to_ne_bytes());
        parameters.clear();
        assert!(parameters.is_empty() && parameters.addresses().is_empty());
    }

    #[test]
    fn more_than_devices_take_is_refused() {
        assert!(Parameters::default().bytes(&[0; PARAMETER_BYTES_MAX]).is_ok());
        assert!(Parameters::default().bytes(&[0; PARAMETER_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_row_of_threads_is_covered() {
        assert_eq!(Launch::linear(257, 256).grid, [2, 1, 1]);
        assert_eq!(Launch::linear(256, 256).grid, [1, 1, 1]);
        assert_eq!(Launch::linear(0, 256).grid, [1, 1, 1]);
    }
}
