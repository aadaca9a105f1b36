//! PTX inspection: extracts the kernels and their parameters, and checks that a device may load the
//! PTX.
//!
//! Only directives are parsed; the driver compiles the instructions. `.extern` declarations are
//! rejected, because external code lets kernels allocate memory, print and launch other kernels.
//! Large module variables are rejected, because they use memory outside the graph's buffers.

mod reader;
mod tokens;

use reader::Reader;

/// Maximum size of PTX in bytes.
const PTX_BYTES_MAX: usize = 4 << 20;
/// Maximum number of kernels of a source.
const ENTRIES_MAX: usize = 256;
/// Maximum number of parameters of a kernel.
const PARAMETERS_MAX: usize = 128;
/// Maximum total size of a module's variables in bytes.
const VARIABLE_BYTES_MAX: u64 = 1 << 20;

/// Checked PTX.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptx {
    /// PTX ISA version, such as `(7, 0)`.
    pub version: (u32, u32),
    /// Minimum compute capability, such as 75.
    pub compute_capability: u32,
    /// Kernels.
    pub entries: Vec<PtxKernel>,
}

/// Kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxKernel {
    /// Name.
    pub name: String,
    /// Parameters, in order.
    pub parameters: Vec<Parameter>,
    /// Maximum number of threads per block, if the kernel declares it.
    pub threads_max: Option<u64>,
}

/// Type of a kernel parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// 32-bit integer.
    Integer32,
    /// 64-bit integer or address.
    Integer64,
    /// 32-bit floating-point number.
    Float32,
    /// 64-bit floating-point number.
    Float64,
    /// Any other type, which a launch cannot pass.
    Other,
}

/// Reason for rejecting PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// The PTX exceeds the maximum size.
    #[error("PTX has at most {PTX_BYTES_MAX} bytes, this has {0}")]
    TooLarge(usize),
    /// The PTX has a zero byte.
    #[error("PTX is text, and this has a zero byte")]
    Zero,
    /// The PTX does not start with `.version` and `.target`.
    #[error("PTX begins with .version and .target: {0}")]
    Head(String),
    /// The PTX is not for 64-bit addresses.
    #[error("PTX has .address_size 64")]
    AddressSize,
    /// The PTX declares external code or variables.
    #[error(
        "{what} is not in the source: kernels of a graph call nothing from elsewhere, such as printf, malloc or assert"
    )]
    Extern {
        /// Declared name.
        what: String,
    },
    /// The variables exceed the maximum total size.
    #[error(
        "the variables of a source take at most {VARIABLE_BYTES_MAX} bytes together, these take {0}: use a constant or a temporary of the graph"
    )]
    Variables(u64),
    /// A directive is malformed.
    #[error("line {line}: {why}")]
    Malformed {
        /// Line number.
        line: usize,
        /// Reason.
        why: String,
    },
    /// The PTX has no kernel.
    #[error("there is no kernel in it: mark one as `extern \"C\" __global__`")]
    NoEntries,
    /// The PTX has too many kernels.
    #[error("a source has at most {ENTRIES_MAX} kernels")]
    TooManyEntries,
    /// The PTX has two kernels of the same name.
    #[error("kernel {0} is there twice")]
    Twice(String),
}

impl Ptx {
    /// Parses PTX.
    pub fn read(text: &str) -> Result<Self, PtxError> {
        if text.len() > PTX_BYTES_MAX {
            return Err(PtxError::TooLarge(text.len()));
        }
        if text.contains('\0') {
            return Err(PtxError::Zero);
        }
        let mut reader = Reader::new(text);
        let (version, compute_capability) = reader.head()?;
        let mut entries: Vec<PtxKernel> = Vec::new();
        let mut variable_bytes: u64 = 0;
        while let Some(token) = reader.next() {
            match token.text {
                ".extern" => reader.external()?,
                ".address_size" if reader.word() != "64" => return Err(PtxError::AddressSize),
                ".global" | ".const" if reader.is_outside() => {
                    variable_bytes = variable_bytes.saturating_add(reader.variable()?);
                }
                ".entry" => {
                    let entry = reader.entry()?;
                    if entries.iter().any(|other| other.name == entry.name) {
                        return Err(PtxError::Twice(entry.name));
                    }
                    entries.push(entry);
                }
                _ => {}
            }
            if entries.len() > ENTRIES_MAX {
                return Err(PtxError::TooManyEntries);
            }
        }
        if variable_bytes > VARIABLE_BYTES_MAX {
            return Err(PtxError::Variables(variable_bytes));
        }
        if entries.is_empty() {
            return Err(PtxError::NoEntries);
        }
        Ok(Self { version, compute_capability, entries })
    }

    /// Returns the kernel with this name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&PtxKernel> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_75\n.address_size 64\n";

    fn read(text: &str) -> Result<Ptx, PtxError> {
        Ptx::read(&format!("{HEAD}{text}"))
    }

    #[test]
    fn kernels_are_parsed_with_their_parameters() {
        let ptx = read(
            "// .extern .func printf\n.global .align 4 .b8 table[16] = {1, 2, 3, 4};\n\
             .extern .shared .align 16 .b8 tile[];\n\
             .func (.param .b32 r) helper(.param .b64 x) { ret; }\n\
             .visible .entry sgemm(\n .param .u64 .ptr .global .align 4 a, /* b */ .param .f32 by, .param .u32 n,\n\
             .param .s64 k, .param .f64 d, .param .align 8 .b8 all[24]\n) .maxntid 16, 16, 1 .minnctapersm 2\n\
             { .reg .f32 %f<3>; { call.uni (r), helper, (x); } ret; }\n.entry none { ret; }",
        );
        let ptx = ptx.unwrap();
        use Parameter::{Float32, Float64, Integer32, Integer64, Other};
        assert_eq!((ptx.version, ptx.compute_capability), ((7, 0), 75));
        let sgemm = ptx.entry("sgemm").unwrap();
        assert_eq!(sgemm.parameters, [Integer64, Float32, Integer32, Integer64, Float64, Other]);
        assert_eq!(sgemm.threads_max, Some(256));
        assert_eq!(ptx.entry("none").map(|entry| entry.parameters.len()), Some(0));
        assert_eq!(ptx.entry("helper"), None);
    }

    #[test]
    fn smallest_thread_limit_of_a_kernel_counts() {
        for directives in [".maxntid 16, 8, 1 .reqntid 256", ".reqntid 256 .maxntid 128"] {
            let ptx = read(&format!(".entry k() {directives} {{ ret; }}")).unwrap();
            assert_eq!(ptx.entry("k").unwrap().threads_max, Some(128), "{directives}");
        }
    }

    #[test]
    fn rejected_ptx_names_the_offending_declaration() {
        let kernel = ".entry k(.param .u64 x) { ret; }";
        for (text, why) in [
            (
                format!(".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);{kernel}"),
                "vprintf",
            ),
            (format!(".extern .func __assertfail(.param .b64 a);{kernel}"), "__assertfail"),
            (format!(".extern .global .b32 x;{kernel}"), "x is not in the source"),
            (format!(".visible .global .align 1 .b8 x[2000000];{kernel}"), "2000000"),
            (format!(".global .v4 .f32 x[1024][128];{kernel}"), "2097152"),
            (format!(".const .b8 x[99999999999999999999];{kernel}"), "is no number"),
            (".func f() { ret; }".to_owned(), "no kernel"),
            (format!("{kernel}{kernel}"), "kernel k is there twice"),
            (".entry k(.param .u64 x);".to_owned(), "has no body"),
            (".entry k(.param .u64 x".to_owned(), "do not end"),
            (".entry (".to_owned(), "no name"),
            (".global .b8 x[4".to_owned(), "does not end"),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        for (text, why) in [
            ("", ".version"),
            (".target sm_75", ".version"),
            (".version x.y .target sm_75", "is none"),
            (".version 7.0 .entry k { ret; }", ".target"),
            (".version 7.0 .target compute_75", "not an architecture"),
            (".version 7.0 .target sm_75 .address_size 32 .entry k { ret; }", ".address_size 64"),
            ("\0", "zero"),
        ] {
            let error = Ptx::read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_never_panics(words in proptest::collection::vec(proptest::sample::select(&[
            ".entry", ".extern", ".global", ".param", ".u64", "k", "(", ")", "{", "}", "[", "]", ",", ";", "=", "1", "\"", "//", "/*", "\n", "é",
        ][..]), 0..40)) {
            let _ = read(&words.join(" "));
            let _ = read(&words.concat());
        }
    }
}
