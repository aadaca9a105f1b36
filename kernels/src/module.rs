//! Modules of kernels, and their compiled files.

use lzma_rust2::XzReader;
use std::io::Read as _;

/// A module of kernels: one `.cu` file in `cuda/`, its PTX for each family of devices in `ptx/`,
/// and its machine code for each architecture in `cubin/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelModule {
    /// Data movement.
    Copy,
    /// Fused elementwise expressions.
    Elementwise,
    /// Matrix products on any device.
    Gemm,
    /// Matrix products on tensor cores.
    GemmTensor,
    /// Convolution on any device.
    Conv,
    /// Convolution on tensor cores.
    ConvTensor,
    /// Pooling, local response normalisation, resizing.
    Picture,
    /// Reductions, selection and cumulative sums of rows.
    Reduce,
    /// Softmax and layer normalisation.
    Normalise,
    /// Attention.
    Attention,
    /// Elements selected by index.
    Gather,
}

impl KernelModule {
    /// All modules.
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

    /// Name of the module's file, without the extension.
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

    /// Lowest compute capability that the module is compiled for.
    #[must_use]
    pub fn compute_capability_min(self) -> u32 {
        if matches!(self, Self::GemmTensor | Self::ConvTensor) { 80 } else { 75 }
    }
}

/// Compressed PTX by the module's name and the lowest compute capability that it is for.
const PTX: &[Packed] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
/// Compressed machine code by the module's name and the compute capability that it was assembled
/// for.
const CUBINS: &[Packed] = include!(concat!(env!("OUT_DIR"), "/cubin.rs"));

type Packed = (&'static str, u32, &'static [u8]);

impl KernelModule {
    /// The module's machine code for a device of this compute capability (90 for 9.0). It was
    /// assembled for the same major version and the newest minor version up to the device's, as
    /// devices require. `None` if the crate has none for this generation; the driver then compiles
    /// [`Self::ptx`]. Decompresses the code on every call: call it once per device.
    #[must_use]
    pub fn cubin(self, compute_capability: u32) -> Option<Vec<u8>> {
        let newest = self.newest(CUBINS, compute_capability)?;
        let (_, _, packed) =
            Some(newest).filter(|(_, made_for, _)| made_for / 10 == compute_capability / 10)?;
        let mut cubin = Vec::new();
        XzReader::new(packed, false).read_to_end(&mut cubin).ok()?;
        Some(cubin)
    }

    /// The module's PTX for a device of this compute capability, of the newest family that the
    /// device supports. `None` if the device is older than all families. Decompresses the PTX on
    /// every call: call it once per device, if [`Self::cubin`] cannot be used.
    #[must_use]
    pub fn ptx(self, compute_capability: u32) -> Option<String> {
        let (_, _, packed) = self.newest(PTX, compute_capability)?;
        let mut text = String::new();
        XzReader::new(packed, false).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// The module's file for the newest compute capability up to this one.
    fn newest(self, files: &'static [Packed], compute_capability: u32) -> Option<Packed> {
        let mine = files.iter().filter(|(name, ..)| *name == self.name());
        let fitting = mine.filter(|(_, made_for, _)| *made_for <= compute_capability);
        fitting.max_by_key(|(_, made_for, _)| *made_for).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_ptx_for_every_supported_device() {
        for module in KernelModule::ALL {
            for device in [75, 80, 86, 90] {
                let ptx = module.ptx(device);
                assert_eq!(
                    ptx.is_some(),
                    device >= module.compute_capability_min(),
                    "{module:?} on {device}"
                );
                let Some(ptx) = ptx else { continue };
                // Every driver from 550 on accepts this version.
                assert!(ptx.contains(".version 8.4"), "{module:?}");
                let family = if device >= 80 { "sm_80" } else { "sm_75" };
                assert!(ptx.contains(&format!(".target {family}")), "{module:?} on {device}");
            }
        }
    }

    /// The compute capability that a cubin was assembled for. NVIDIA stores it in the flags of the
    /// file's header: in the lowest byte in the format of CUDA 12, and in the next byte in the
    /// format of CUDA 13.
    fn assembled_for(cubin: &[u8]) -> u32 {
        const FORMAT_BYTE: usize = 8;
        const FLAGS_BYTE: usize = 48;
        assert!(cubin.starts_with(b"\x7fELF"));
        let is_newer = cubin[FORMAT_BYTE] > 7;
        u32::from(cubin[FLAGS_BYTE + usize::from(is_newer)])
    }

    #[test]
    fn devices_get_machine_code_of_their_generation() {
        for (device, expected) in [
            (75, Some(75)),
            (80, Some(80)),
            (86, Some(86)),
            (87, Some(86)),
            (89, Some(86)),
            (90, Some(90)),
            (100, Some(100)),
            (103, Some(100)),
            (110, None),
            (120, Some(120)),
            (121, Some(120)),
            (130, None),
            (70, None),
        ] {
            for module in KernelModule::ALL {
                let cubin = module.cubin(device);
                let is_for = device >= module.compute_capability_min();
                let expected = expected.filter(|_| is_for);
                assert_eq!(cubin.as_deref().map(assembled_for), expected, "{module:?} on {device}");
            }
        }
    }

    #[test]
    fn every_kernel_file_has_a_module() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = files
            .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut modules: Vec<_> = KernelModule::ALL.map(|module| module.name().to_owned()).to_vec();
        names.sort();
        modules.sort();
        assert_eq!(names, modules);
    }
}
