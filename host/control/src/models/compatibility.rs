//! Compatibility of a model's newest version with the version before it, for the functions and
//! clients that name the model without a version.

use weir_types::{Port, Signature};

/// The number of differences that a message lists.
const LISTED_MAX: usize = 8;

/// The differences because of which users of `old` cannot use `new`, as text; `None` if they can.
/// Dimensions may become variable, and dimensions of outputs may become fixed.
pub(super) fn breaking_changes(old: &Signature, new: &Signature) -> Option<String> {
    let inputs = changes("input", &old.inputs, &new.inputs, |old, new| old.is_some() || new.is_none());
    let outputs = changes("output", &old.outputs, &new.outputs, |_, _| true);
    let mut all: Vec<String> = inputs.chain(outputs).collect();
    let others = all.len().saturating_sub(LISTED_MAX);
    all.truncate(LISTED_MAX);
    if others > 0 {
        all.push(format!("and {others} other differences"));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// The differences between ports. `may_change` permits a dimension to become another one if
/// they are not two different sizes.
fn changes<'a>(
    kind: &'static str,
    old: &'a [Port],
    new: &'a [Port],
    may_change: fn(Option<u32>, Option<u32>) -> bool,
) -> impl Iterator<Item = String> + 'a {
    let change = move |port: &Port| {
        let Some(now) = new.iter().find(|now| now.name == port.name) else {
            return Some(format!("{kind} {port} is missing"));
        };
        let fits = |(old, new): (&Option<u32>, &Option<u32>)| match (old, new) {
            (Some(old), Some(new)) => old == new,
            _ => may_change(*old, *new),
        };
        let is_same = port.datatype == now.datatype
            && port.shape.len() == now.shape.len()
            && port.shape.iter().zip(&now.shape).all(fits);
        (!is_same).then(|| format!("{kind} {port} is now {now}"))
    };
    let added = new.iter().filter(|now| !old.iter().any(|port| port.name == now.name));
    old.iter().filter_map(change).chain(added.map(move |port| format!("{kind} {port} is new")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::ElementType;

    fn port(name: &str, shape: &[Option<u32>]) -> Port {
        Port { name: name.to_owned(), datatype: ElementType::Fp32, shape: shape.to_vec() }
    }

    fn signature(input: &[Option<u32>], output: &[Option<u32>]) -> Signature {
        Signature { inputs: vec![port("x", input)], outputs: vec![port("y", output)] }
    }

    #[test]
    fn looser_dimensions_are_compatible() {
        let old = signature(&[Some(1), Some(4)], &[None, Some(3)]);
        for new in [
            old.clone(),
            signature(&[None, Some(4)], &[None, Some(3)]),
            signature(&[None, None], &[None, None]),
            signature(&[Some(1), Some(4)], &[Some(1), Some(3)]),
        ] {
            assert_eq!(breaking_changes(&old, &new), None, "{new:?}");
        }
    }

    #[test]
    fn other_ports_types_ranks_and_sizes_are_breaking() {
        let old = signature(&[None, Some(4)], &[None, Some(3)]);
        let text = |new: &Signature| breaking_changes(&old, new).unwrap_or_default();
        let same = &[None, Some(3)];
        assert_eq!(text(&signature(&[Some(1), Some(4)], same)), "input x: FP32[?, 4] is now x: FP32[1, 4]");
        assert_eq!(text(&signature(&[None, Some(5)], same)), "input x: FP32[?, 4] is now x: FP32[?, 5]");
        assert_eq!(text(&signature(&[Some(4)], same)), "input x: FP32[?, 4] is now x: FP32[4]");
        let mut new = old.clone();
        new.outputs[0].datatype = ElementType::Int64;
        assert_eq!(text(&new), "output y: FP32[?, 3] is now y: INT64[?, 3]");
        new = old.clone();
        new.inputs.push(port("more", &[None]));
        assert_eq!(text(&new), "input more: FP32[?] is new");
        new.inputs.remove(0);
        assert_eq!(text(&new), "input x: FP32[?, 4] is missing; input more: FP32[?] is new");
    }

    #[test]
    fn message_about_many_differences_is_short() {
        let ports = (0..100).map(|at| port(&format!("x{at}"), &[])).collect();
        let new = Signature { inputs: ports, outputs: Vec::new() };
        let text = breaking_changes(&Signature::default(), &new).unwrap();
        assert!(text.ends_with("; and 92 other differences") && text.len() < 400, "{text}");
    }
}
