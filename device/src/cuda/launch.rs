//! Launch dimensions and parameters of kernels.

use super::error::CudaError;
use std::ffi::c_void;

/// The most bytes of parameters that every device accepts.
const PARAMETER_BYTES_MAX: usize = 4 << 10;

/// Number and arrangement of the threads that run a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in addition to the kernel's static shared memory.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// `threads` threads in one dimension, in blocks of `block`; the last block may have surplus
    /// threads.
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
/// use weir_device::cuda::KernelParameters;
/// let mut parameters = KernelParameters::default();
/// parameters.address(0x7f00_0000_0000).u32(1024).f32(0.5);
/// assert_eq!(parameters.len(), 3);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelParameters {
    /// The values, each starting at a new word, so that every value is aligned.
    words: Vec<u64>,
    /// Index of each value's first word.
    starts: Vec<usize>,
}

impl KernelParameters {
    /// Adds a pointer.
    pub fn address(&mut self, address: u64) -> &mut Self {
        self.u64(address)
    }

    /// Adds a 64-bit integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.starts.push(self.words.len());
        self.words.push(value);
        self
    }

    /// Adds an unsigned 32-bit integer.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.push(&value.to_ne_bytes())
    }

    /// Adds a 32-bit integer.
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.push(&value.to_ne_bytes())
    }

    /// Adds a 32-bit floating-point number.
    pub fn f32(&mut self, value: f32) -> &mut Self {
        self.push(&value.to_ne_bytes())
    }

    /// Adds a structure, given as bytes in the device's layout.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<&mut Self, CudaError> {
        if self.words.len() * 8 + bytes.len() > PARAMETER_BYTES_MAX {
            return Err(CudaError::Invalid(format!(
                "a kernel takes at most {PARAMETER_BYTES_MAX} bytes of parameters"
            )));
        }
        Ok(self.push(bytes))
    }

    /// Number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Removes all parameters, and keeps the capacity.
    pub fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
    }

    /// Address of each value, for the driver to copy from. Valid until the next change.
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
    fn parameters_start_at_separate_words() {
        let mut parameters = KernelParameters::default();
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
    fn too_many_parameter_bytes_are_refused() {
        assert!(KernelParameters::default().bytes(&[0; PARAMETER_BYTES_MAX]).is_ok());
        assert!(KernelParameters::default().bytes(&[0; PARAMETER_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn linear_launch_covers_all_threads() {
        assert_eq!(LaunchConfig::linear(257, 256).grid, [2, 1, 1]);
        assert_eq!(LaunchConfig::linear(256, 256).grid, [1, 1, 1]);
        assert_eq!(LaunchConfig::linear(0, 256).grid, [1, 1, 1]);
    }
}
