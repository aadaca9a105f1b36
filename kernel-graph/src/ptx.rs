//! What PTX has in it: which kernels, with which parameters, and whether it is fit to be given to a device.
//!
//! Only the directives are read; instructions are the driver's business, which compiles them. What is refused is what a kernel of a graph has no use
//! for and the node none of the consequences of: code from elsewhere (`.extern`), by which kernels allocate, print and launch kernels of their own, and
//! memory beside the graph's buffers.

mod reader;
mod tokens;

use reader::Reader;

/// The largest PTX.
const PTX_BYTES_MAX: usize = 4 << 20;
/// The most kernels in it.
const ENTRIES_MAX: usize = 256;
/// The most parameters of a kernel.
const PARAMETERS_MAX: usize = 128;
/// What variables of a module may take together.
const VARIABLE_BYTES_MAX: u64 = 1 << 20;

/// PTX that was looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptx {
    /// Its version of the language, as `(7, 0)`.
    pub version: (u32, u32),
    /// The compute capability that it is for at least, as 75.
    pub compute_capability: u32,
    /// Its kernels.
    pub entries: Vec<Entry>,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What it takes, in order.
    pub parameters: Vec<Parameter>,
    /// The most threads that a block of it may have, where it says so.
    pub threads_max: Option<u64>,
}

/// What one parameter of a kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// A whole number of 32 bits.
    Integer32,
    /// A whole number of 64 bits, or an address.
    Integer64,
    /// A floating-point number of 32 bits.
    Float32,
    /// A floating-point number of 64 bits.
    Float64,
    /// Something else, which a launch cannot give.
    Other,
}

/// Why PTX is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// It is too large.
    #[error("PTX has at most {PTX_BYTES_MAX} bytes, this has {0}")]
    TooLarge(usize),
    /// It has a zero.
    #[error("PTX is text, and this has a zero byte")]
    Zero,
    /// It does not begin as PTX does.
    #[error("PTX begins with .version and .target: {0}")]
    Head(String),
    /// It is for other addresses than devices have.
    #[error("PTX has .address_size 64")]
    AddressSize,
    /// It uses code that is not in it.
    #[error(
        "{what} is not in the source: kernels of a graph call nothing from elsewhere, such as printf, malloc or assert"
    )]
    Extern {
        /// What is declared.
        what: String,
    },
    /// Its variables are too large.
    #[error(
        "the variables of a source take at most {VARIABLE_BYTES_MAX} bytes together, these take {0}: use a constant or a temporary of the graph"
    )]
    Variables(u64),
    /// It cannot be read.
    #[error("line {line}: {why}")]
    Malformed {
        /// Where.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// There is no kernel in it.
    #[error("there is no kernel in it: mark one as `extern \"C\" __global__`")]
    NoEntries,
    /// There are too many kernels.
    #[error("a source has at most {ENTRIES_MAX} kernels")]
    TooManyEntries,
    /// A kernel is there twice.
    #[error("kernel {0} is there twice")]
    Twice(String),
}

impl Ptx {
    /// Look through a text.
    pub fn read(text: &str) -> Result<Self, PtxError> {
        if text.len() > PTX_BYTES_MAX {
            return Err(PtxError::TooLarge(text.len()));
        }
        if text.contains('\0') {
            return Err(PtxError::Zero);
        }
        let mut reader = Reader::new(text);
        let (version, compute_capability) = reader.head()?;
        let (mut entries, mut variable_bytes): (Vec<Entry>, u64) = (Vec::new(), 0);
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

    /// The kernel of that name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
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
    fn kernels_are_read_with_what_they_take() {
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
    fn what_a_device_is_not_given_is_refused_by_name() {
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
            (".version 7.0 .target compute_75", "is none"),
            (".version 7.0 .target sm_75 .address_size 32 .entry k { ret; }", ".address_size 64"),
            ("\0", "zero"),
        ] {
            let error = Ptx::read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(words in proptest::collection::vec(proptest::sample::select(&[
            ".entry", ".extern", ".global", ".param", ".u64", "k", "(", ")", "{", "}", "[", "]", ",", ";", "=", "1", "\"", "//", "/*", "\n", "é",
        ][..]), 0..40)) {
            let _ = read(&words.join(" "));
            let _ = read(&words.concat());
        }
    }
}
