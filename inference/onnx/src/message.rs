//! Classification of ONNX Runtime's error texts, since its error codes are too coarse.

/// Whether an allocation failed.
pub(crate) fn is_out_of_memory(why: &str) -> bool {
    ["bad_alloc", "ailed to allocate memory", "Available memory of"].iter().any(|words| why.contains(words))
}

/// Whether an output did not have the shape of the memory supplied for it.
pub(crate) fn is_shape_mismatch(why: &str) -> bool {
    ["shape verification failed", "pre-allocated output"].iter().any(|words| why.contains(words))
}

/// Whether the model needs a feature that this ONNX Runtime lacks.
pub(crate) fn is_unsupported(why: &str) -> bool {
    let unsupported = [
        "is not a registered function/op",
        "No Op registered for",
        "Could not find an implementation for",
        "support for this is limited",
    ];
    unsupported.iter().any(|words| why.contains(words))
}

/// The remedy for an error of ONNX Runtime, if the text of the error has one.
pub(crate) fn remedy(why: &str) -> Option<String> {
    let (_, limit) = why.split_once("max supported IR version: ")?;
    let version: String = limit.chars().take_while(char::is_ascii_digit).collect();
    // The version says which features of the format a model may use, and few models use the newest.
    Some(format!(
        "set it with Python's onnx: `m = onnx.load(FILE); m.ir_version = {version}; onnx.save(m, FILE)`"
    ))
}

/// The text without its origin in ONNX Runtime's sources.
pub(crate) fn plain(why: &str) -> String {
    match why.split_once(" Status Message: ") {
        Some((node, status)) => {
            let node = node.trim_start_matches("Non-zero status code returned while running ");
            format!("{node} {}", without_origin(status))
        }
        None => without_origin(why).to_owned(),
    }
}

/// Exceptions start with a file and line, and a function with its parameters.
fn without_origin(why: &str) -> &str {
    let why = why.trim();
    if !why.starts_with('/') {
        return why;
    }
    let mut depth = 0_i32;
    let end = why.char_indices().find(|(_, c)| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => return false,
        };
        depth == 0
    });
    end.and_then(|(end, _)| why.get(end + 1..))
        .map_or(why, |rest| rest.trim_start_matches(" const").trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_for_a_newer_format_names_the_supported_version() {
        let refused = "Unsupported model IR version: 14, max supported IR version: 13";
        assert!(remedy(refused).unwrap().contains("m.ir_version = 13;"));
        assert_eq!(remedy("Opset 9999 is too new (9)."), None);
    }

    #[test]
    fn exception_origin_is_stripped() {
        let thrown = "/src/graph/load.h:46 void ort::Validate(const std::map<char, int>&, void (*)(int), bool) const Opset 9999 is too new (9).\n";
        assert_eq!(plain(thrown), "Opset 9999 is too new (9).");
        let failed = "Non-zero status code returned while running Gather node. Name:'g' Status Message: indices element out of data bounds, idx=7";
        assert_eq!(plain(failed), "Gather node. Name:'g' indices element out of data bounds, idx=7");
        for unchanged in ["Type Error: (T) of Add", "/just/a/path", ""] {
            assert_eq!(plain(unchanged), unchanged);
        }
    }
}
