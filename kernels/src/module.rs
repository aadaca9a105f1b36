//! The files of kernels, and what they were compiled to.

use lzma_rust2::XzReader;
use std::io::Read as _;

/// A file of kernels: one `.cu` file in `cuda/`, and its PTX for each family of devices in `ptx/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// Moving elements.
    Copy,
    /// Fused elementwise expressions.
    Elementwise,
    /// Products of matrices on any device.
    Gemm,
    /// Products of matrices by the units for matrices.
    GemmTensor,
    /// Convolution on any device.
    Conv,
    /// Convolution by the units for matrices.
    ConvTensor,
    /// Pooling, local response normalisation, other sizes.
    Picture,
    /// One number of each row; selection; running sums.
    Reduce,
    /// Softmax and layer normalisation.
    Normalise,
    /// Attention.
    Attention,
    /// Elements picked by index.
    Gather,
}

impl Module {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Copy,
        Self::Elementwise,
        Self::Gemm,
        Self::GemmTensor,
        Self::Conv,
        Self::ConvTensor,
        Self::Picture,
        Self::Reduce,
        Self::Normalise,
        Self::Attention,
        Self::Gather,
    ];

    /// The name of its file, without the ending.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Elementwise => "elementwise",
            Self::Gemm => "gemm",
            Self::GemmTensor => "gemm_tensor",
            Self::Conv => "conv",
            Self::ConvTensor => "conv_tensor",
            Self::Picture => "picture",
            Self::Reduce => "reduce",
            Self::Normalise => "normalise",
            Self::Attention => "attention",
            Self::Gather => "gather",
        }
    }

    /// The least compute capability that it is compiled for.
    #[must_use]
    pub fn compute_capability_min(self) -> u32 {
        if matches!(self, Self::GemmTensor | Self::ConvTensor) { 80 } else { 75 }
    }
}

/// PTX by the name of its module and the least compute capability that it is for, compressed.
const PTX: &[(&str, u32, &[u8])] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

impl Module {
    /// The module's PTX for a device of this compute capability (90 for 9.0): of the newest family that is not newer. None if the device is
    /// older than all of them. Unpacks it: call it once for a device, when the module is first needed there.
    #[must_use]
    pub fn ptx(self, compute_capability: u32) -> Option<String> {
        let fitting =
            PTX.iter().filter(|(name, family, _)| *name == self.name() && *family <= compute_capability);
        let (_, _, packed) = fitting.max_by_key(|(_, family, _)| *family)?;
        let mut text = String::new();
        XzReader::new(*packed, false).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_ptx_for_every_device_that_it_is_for() {
        for module in Module::ALL {
            for device in [75, 80, 86, 90] {
                let ptx = module.ptx(device);
                assert_eq!(
                    ptx.is_some(),
                    device >= module.compute_capability_min(),
                    "{module:?} on {device}"
                );
                let Some(ptx) = ptx else { continue };
                // Taken by every driver from 550 on.
                assert!(ptx.contains(".version 8.4"), "{module:?}");
                let family = if device >= 80 { "sm_80" } else { "sm_75" };
                assert!(ptx.contains(&format!(".target {family}")), "{module:?} on {device}");
            }
        }
    }

    #[test]
    fn there_is_a_module_for_every_file_of_kernels() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = files
            .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut modules: Vec<_> = Module::ALL.map(|module| module.name().to_owned()).to_vec();
        names.sort();
        modules.sort();
        assert_eq!(names, modules);
    }
}
